"""The shape of a flow: order, ancestors, cycles. Nothing here knows what a node does."""

from collections.abc import Iterable, Mapping, Sequence


def find_cycle(depends: Mapping[str, Sequence[str]]) -> list[str] | None:
    """A cycle as `[a, b, a]`, or None. Walks in the order given, so the same flow always names the same cycle."""
    done: set[str] = set()
    for root in depends:
        if root in done:
            continue
        # An explicit stack: a chain of thousands of nodes must not end in a RecursionError.
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, Iterable[str]]] = [(root, iter(depends[root]))]
        path.append(root)
        on_path.add(root)
        while stack:
            node, upstream = stack[-1]
            following = next(iter(upstream), None)
            if following is None:
                stack.pop()
                path.pop()
                on_path.discard(node)
                done.add(node)
            elif following in on_path:
                return [*path[path.index(following) :], following][::-1]
            elif following in depends and following not in done:
                stack.append((following, iter(depends[following])))
                path.append(following)
                on_path.add(following)
    return None


def topological(depends: Mapping[str, Sequence[str]]) -> list[str]:
    """Dependencies first; among equals, the order given. Only for graphs without a cycle."""
    order: list[str] = []
    seen: set[str] = set()
    for root in depends:
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order.append(node)
            elif node not in seen and node in depends:
                seen.add(node)
                stack.append((node, True))
                stack.extend((upstream, False) for upstream in reversed(depends[node]))
    return order


def ancestors(depends: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Everything upstream of each node. Only for graphs without a cycle."""
    found: dict[str, frozenset[str]] = {}
    for node in topological(depends):
        above: set[str] = set()
        for upstream in depends[node]:
            above.add(upstream)
            above |= found.get(upstream, frozenset())
        found[node] = frozenset(above)
    return found

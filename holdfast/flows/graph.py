"""The shape of a flow: order, what is upstream, cycles. Nothing here knows what a node does."""

from collections.abc import Iterator, Mapping, Sequence


def find_cycle(depends: Mapping[str, Sequence[str]]) -> list[str] | None:
    """A cycle as `[a, b, a]`, or None. Walks in the order given, so the same flow always names the same cycle."""
    done: set[str] = set()
    for root in depends:
        if root in done:
            continue
        # An explicit stack: a chain of thousands of nodes must not end in a RecursionError.
        path = [root]
        on_path = {root}
        stack: list[tuple[str, Iterator[str]]] = [(root, iter(depends[root]))]
        while stack:
            node, remaining = stack[-1]
            following = next(remaining, None)
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
                stack.extend((name, False) for name in reversed(depends[node]))
    return order


def upstream(depends: Mapping[str, Sequence[str]], node: str) -> set[str]:
    """Everything that `node` waits for, directly or not. One at a time: for all of a long chain it would be huge."""
    found: set[str] = set()
    frontier = list(depends[node])
    while frontier:
        name = frontier.pop()
        if name not in found:
            found.add(name)
            frontier.extend(depends.get(name, ()))
    return found

// A flow as a picture: dagre says where things are, this draws them. The layout is made once for a definition; when the
// run moves on, only the nodes whose state has changed are drawn again.

import { Component, html, useMemo } from "./vendor/htm-preact.js";
import * as dagre from "./vendor/dagre.js";
import { NODE_STATES, short } from "./words.js";

const WIDTH = 190;
const HEIGHT = 54;
const LETTER = 7;
// A picture a little wider than a phone is made smaller; a wide one would become unreadable, and is scrolled.
const SHRINKS = 560;

export function Graph({ definition, states, selected, onSelect }) {
  const drawn = useMemo(() => layout(definition), [definition]);
  const { width, height } = drawn;
  return html`
    <div class="graph" role="group" aria-label="The steps of the flow">
      <svg class=${width < SHRINKS ? "shrinks" : ""} width=${width} height=${height} viewBox="0 0 ${width} ${height}">
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0 8 4 0 8z" class="arrow" />
          </marker>
        </defs>
        <${Edges} edges=${drawn.edges} />
        ${drawn.nodes.map((node) => {
          const { state = "pending", note = "" } = states.get(node.id) ?? {};
          const chosen = selected === node.id;
          return html`<${GraphNode} key=${node.id} ...${{ node, state, note, onSelect }} selected=${chosen} />`;
        })}
      </svg>
    </div>
  `;
}

function layout(definition) {
  const graph = new dagre.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: 28, ranksep: 46, marginx: 12, marginy: 12 });
  const nodes = definition.nodes ?? [];
  const known = new Set(nodes.map((node) => node.id));
  for (const node of nodes) graph.setNode(node.id, { width: WIDTH, height: HEIGHT });
  for (const node of nodes) {
    const edges = (node.depends ?? []).filter((edge) => known.has(edge.node));
    edges.forEach((edge, index) => {
      const said = short(edgeLabel(edge), 28);
      const size = { width: said.length * LETTER, height: said ? 16 : 0, labelpos: "c" };
      graph.setEdge(edge.node, node.id, { said, kind: edge.trigger ?? "success", ...size }, String(index));
    });
  }
  dagre.layout(graph);
  const { width, height } = graph.graph();
  return {
    width: Math.ceil(width || 1),
    height: Math.ceil(height || 1),
    nodes: nodes.map((node) => ({ id: node.id, type: node.type, name: node.name ?? node.id, ...graph.node(node.id) })),
    edges: graph.edges().map((edge) => ({ id: `${edge.v}>${edge.w}>${edge.name}`, ...graph.edge(edge) })),
  };
}

function edgeLabel(edge) {
  if (edge.option) return edge.option;
  if (edge.trigger === "failure") return "if it fails";
  return edge.condition ? "on a condition" : "";
}

/** Drawn once: edges have no state. */
class Edges extends Component {
  shouldComponentUpdate(next) {
    return next.edges !== this.props.edges;
  }

  render({ edges }) {
    return html`<g>
      ${edges.map(
        (edge) => html`
          <path key=${edge.id} class="edge ${edge.kind}" d=${curve(edge.points)} marker-end="url(#arrow)" />
          ${edge.said &&
          html`<text key=${`${edge.id} label`} class="option" x=${edge.x} y=${edge.y + 4} text-anchor="middle">
            ${edge.said}
          </text>`}
        `,
      )}
    </g>`;
  }
}

/** Through the middles of dagre's points, so that corners are round. */
function curve(points) {
  const [first, ...rest] = points;
  const last = rest.pop();
  let drawn = `M${first.x} ${first.y}`;
  rest.forEach((point, index) => {
    const next = rest[index + 1] ?? last;
    const end = index === rest.length - 1 ? next : { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 };
    drawn += ` Q${point.x} ${point.y} ${end.x} ${end.y}`;
  });
  return rest.length ? drawn : `${drawn} L${last.x} ${last.y}`;
}

class GraphNode extends Component {
  shouldComponentUpdate(next) {
    return ["node", "state", "note", "selected"].some((name) => next[name] !== this.props[name]);
  }

  render({ node, state, note, selected, onSelect }) {
    const choose = (event) => {
      if (event.key !== undefined && event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      onSelect(node.id);
    };
    const words = NODE_STATES[state];
    // What is seen comes first, as it is seen: who speaks to the page says the words on it.
    const seen = note ? `${words} · ${note}` : words;
    const place = `translate(${node.x - WIDTH / 2} ${node.y - HEIGHT / 2})`;
    return html`
      <g
        class="node ${state} ${selected ? "selected" : ""}"
        data-node=${node.id}
        tabindex="0"
        role="button"
        aria-pressed=${selected}
        aria-label="${node.name} ${seen} (${node.type})"
        transform=${place}
        onClick=${choose}
        onKeyDown=${choose}
      >
        <title>${node.name}</title>
        <rect class="box" width=${WIDTH} height=${HEIGHT} rx="8" />
        <rect class="bar" x="4" y="8" width="5" height=${HEIGHT - 16} rx="2.5" />
        <text x="18" y="23" class="name">${short(node.name, 21)}</text>${" "}
        <text x="18" y="41" class="state">${short(seen, 27)}</text>
      </g>
    `;
  }
}

// Two moments side by side: of this run, or of this run and another of its family.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Side } from "./editing.js";
import { Server } from "./server.js";
import { NODE_STATES, RUN_STATES, clock, label } from "./words.js";

const SIGNS = { added: "+", removed: "−", changed: "~" };
const MOST = 100;
// A checkpoint calls a run active, people say that it is running.
const STATUS = { ...RUN_STATES, ...NODE_STATES, active: RUN_STATES.running };

/** `start`: the checkpoint that was looked at when somebody asked to compare, null for now; `asked`: how often. */
export function Compare({ runId, start, asked, listed, relatives, names, onClose }) {
  const server = useContext(Server);
  const [left, setLeft] = useState(() => start ?? listed[0]?.id ?? runId);
  const [right, setRight] = useState(runId);
  const [found, setFound] = useState(null);
  const place = useRef(null);
  useEffect(() => {
    place.current.focus({ preventScroll: true });
    place.current.scrollIntoView({ block: "start" });
  }, [asked]);
  const compare = async (event) => {
    event.preventDefault();
    setFound({ reading: true });
    try {
      setFound({ diff: await server.holdfast.diff(left, right) });
    } catch (error) {
      server.failed(error);
      setFound({ problem: error.message });
    }
  };
  const moments = { runId, listed, relatives, start };
  return html`
    <section aria-labelledby="compare">
      <h2 id="compare" tabindex="-1" ref=${place}>Compare two moments</h2>
      <form class="card compare" onSubmit=${compare}>
        <${Choice} id="compare-left" words="Before" value=${left} onValue=${setLeft} ...${moments} />
        <${Choice} id="compare-right" words="After" value=${right} onValue=${setRight} ...${moments} />
        <div class="buttons">
          <button type="submit" class="yes">Compare</button>
          <button type="button" onClick=${onClose}>Close</button>
        </div>
      </form>
      <div role="status">
        ${found?.reading && html`<p>Comparing…</p>`}
        ${found?.diff && html`<p>${counted(found.diff.changes.length)}</p>`}
      </div>
      ${found?.problem && html`<p class="problem" role="alert">${found.problem}</p>`}
      ${found?.diff && html`<${Differences} changes=${found.diff.changes} names=${names} />`}
    </section>
  `;
}

function counted(count) {
  if (!count) return "There is no difference.";
  return count === 1 ? "There is one difference." : `There are ${count} differences.`;
}

function Choice({ id, words, value, onValue, runId, listed, relatives, start }) {
  const unlisted = start && !listed.some((entry) => entry.id === start);
  const others = relatives.filter((member) => member.run_id !== runId);
  return html`
    <div class="field">
      <label for=${id}>${words}</label>
      <select id=${id} value=${value} onChange=${(event) => onValue(event.target.value)}>
        <option value=${runId}>this run, now</option>
        ${unlisted && html`<option value=${start}>the moment you looked at (@${start.split("@").pop()})</option>`}
        <optgroup label="Checkpoints of this run">
          ${listed.map(
            (entry, index) => html`
              <option key=${entry.id} value=${entry.id}>
                ${index + 1}: ${clock(entry.at)}, ${label(entry.event).toLowerCase()} ${entry.path}
              </option>
            `,
          )}
        </optgroup>
        ${others.length > 0 &&
        html`
          <optgroup label="Other runs of its family, now">
            ${others.map(({ run_id: id, status }) => html`<option key=${id} value=${id}>${id} (${RUN_STATES[status]})</option>`)}
          </optgroup>
        `}
      </select>
    </div>
  `;
}

/** Grouped by node, in the server's order: what concerns the run itself comes first. */
function Differences({ changes, names }) {
  const [shown, setShown] = useState(MOST);
  const groups = new Map();
  for (const change of changes.slice(0, shown)) {
    if (!groups.has(change.node)) groups.set(change.node, []);
    groups.get(change.node).push(change);
  }
  return html`
    ${[...groups].map(
      ([node, found]) => html`
        <section class="part card" key=${node} data-diff=${node}>
          <h3>${node ? (names.get(node) ?? node) : "The run itself"}</h3>
          <ul class="changes">${found.map((change) => html`<${Difference} key=${change.field} change=${change} />`)}</ul>
        </section>
      `,
    )}
    ${changes.length > shown && html`<button onClick=${() => setShown(shown + 500)}>Show more (of ${changes.length})</button>`}
  `;
}

/** One change: its field, and what it was before and after. */
export function Difference({ change }) {
  const { kind, field, left, right } = change;
  const words = (value) => (field === "status" ? (STATUS[value] ?? value) : value);
  return html`
    <li class="difference ${kind}">
      <div><span class="sign">${SIGNS[kind]} ${kind}</span> <span class="id">${field}</span></div>
      <div class="sides">
        ${kind !== "added" && html`<${Side} word="before" value=${words(left)} />`}
        ${kind !== "removed" && html`<${Side} word="after" value=${words(right)} />`}
      </div>
    </li>
  `;
}

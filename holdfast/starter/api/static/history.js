// One step through the run: each moment at which it changed, with before and after, and the way back to it.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { isTemporary } from "./client.js";
import { Difference } from "./diff.js";
import { placeOf } from "./moment.js";
import { Server, whyNot } from "./server.js";
import { clock, label } from "./words.js";

const PAUSE = 1000;
const AGAIN = 3000;
const SHOWN = 50;
const MOST = 100;
const WORDS = {
  node_started: "Started",
  node_completed: "Done",
  node_failed: "Failed",
  node_skipped: "Skipped",
  run_resumed: "Taken over from another run",
};

/**
 * `seq`: the moment that is looked at; `moved`: another one when something has happened to the step; `asked`: how often
 * somebody has asked for it.
 */
export function Through({ runId, node, name, seq, moved, asked, onClose }) {
  const [field, setField] = useState("");
  const [shown, setShown] = useState(SHOWN);
  const { fields, moments, problem } = useHistory(runId, node, field, moved);
  const place = useRef(null);
  useEffect(() => {
    place.current.focus({ preventScroll: true });
    place.current.scrollIntoView({ block: "start" });
  }, [asked]);
  return html`
    <section aria-labelledby="through" class="through">
      <h2 id="through" tabindex="-1" ref=${place}>“${name}” through the run</h2>
      <form class="card compare" onSubmit=${(event) => event.preventDefault()}>
        <div class="field">
          <label for="through-field">What</label>
          <select id="through-field" value=${field} onChange=${(event) => setField(event.target.value)}>
            <option value="">everything</option>
            ${fields.map((known) => html`<option key=${known} value=${known}>${label(known).toLowerCase()}</option>`)}
          </select>
        </div>
        <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
      </form>
      <p role="status">${!problem && (moments ? counted(moments.length) : "Reading…")}</p>
      <div role="alert" class=${problem ? "problem" : "hidden"}>${problem}</div>
      <ol class="moments">
        ${(moments ?? []).slice(0, shown).map((moment) => {
          const here = moment.sequence_number === seq;
          return html`<${Changed} key=${moment.checkpoint_id} ...${{ moment, here }} />`;
        })}
      </ol>
      ${moments?.length > shown &&
      html`<button onClick=${() => setShown(shown + 500)}>Show more (of ${moments.length})</button>`}
    </section>
  `;
}

/** The history of the step, or of one field, and the fields that have changed at all. Read again, not for every event. */
function useHistory(runId, node, field, moved) {
  const server = useContext(Server);
  const [found, setFound] = useState({ fields: [], moments: null, problem: null });
  const last = useRef({ at: 0, field });
  useEffect(() => {
    let left = false;
    // What somebody has chosen is read at once; what only goes on by itself can wait a little.
    const pause = last.current.field === field ? last.current.at + PAUSE - Date.now() : 0;
    if (last.current.field !== field) setFound((before) => ({ ...before, moments: null }));
    last.current.field = field;
    const read = async () => {
      last.current.at = Date.now();
      try {
        const moments = await server.holdfast.history(runId, { node, field });
        const fields = field ? null : fieldsOf(moments);
        if (!left) setFound((before) => ({ fields: fields ?? before.fields, moments, problem: null }));
      } catch (error) {
        server.failed(error);
        if (left) return;
        setFound((before) => ({ ...before, problem: `It cannot be shown: ${whyNot(error)}` }));
        if (isTemporary(error)) timer = setTimeout(read, AGAIN);
      }
    };
    let timer = setTimeout(read, Math.max(0, pause));
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [runId, node, field, moved]);
  return found;
}

/** `output` of `output.items[3]`. */
function fieldsOf(moments) {
  const all = moments.flatMap(({ changes }) => changes.map(({ field }) => /^[^.[]+/.exec(field)?.[0] ?? field));
  return [...new Set(all)];
}

function counted(count) {
  if (!count) return "It has not changed in this run.";
  return count === 1 ? "It changed at one moment." : `It changed at ${count} moments.`;
}

function Changed({ moment, here }) {
  const { checkpoint_id: id, at, event, changes } = moment;
  return html`
    <li class="card ${here ? "here" : ""}" aria-current=${here ? "true" : undefined} data-moment=${moment.sequence_number}>
      <a class="moment" href=${placeOf(id)}>
        <time datetime=${at}>${clock(at)}</time> ${WORDS[event] ?? label(event)}${" "}
        <span class="id quiet">@${moment.sequence_number}</span>
      </a>
      ${here && html` <b>(you look at this one)</b>`}
      <ul class="changes">
        ${changes.slice(0, MOST).map((change) => html`<${Difference} key=${change.field} change=${change} />`)}
      </ul>
      ${changes.length > MOST && html`<p class="quiet">and ${changes.length - MOST} more</p>`}
    </li>
  `;
}

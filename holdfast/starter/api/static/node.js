// What is known of one step: from the stream, and what only the checkpoint has: an agent's conversation, a map's items.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Badge, Conversation, Data, When } from "./data.js";
import { EditForm, placesIn } from "./editing.js";
import { Server } from "./server.js";
import { NODE_STATES, duration, isObject } from "./words.js";

const PAUSE = 1000;

/** The step as it is now, or with `then`, `{id, checkpoint, onAdd}`, as it was, where its values can be changed. */
export function NodeDetail(props) {
  const { runId, node, known = { state: "pending" }, then, pending, moved, partial } = props;
  const { onWanted, onLook, onThrough } = props;
  const latest = useInner(runId, node, moved, Boolean(then));
  const inner = then ? innerOf(then.checkpoint, node.id) : latest;
  const record = inner?.record;
  const state = record?.internal_state ?? {};
  const input = known.input ?? record?.input_data;
  const output = known.output ?? (known.kept ? record?.output_data : undefined);
  const error = known.error ?? undefined;
  const places = then ? placesIn(then.checkpoint, node.id) : {};
  const change = (group, words, start) => {
    if (!places[group]?.length) return null;
    const form = { path: node.id, places: places[group], onAdd: then.onAdd, words, start };
    return html`<${Change} key=${`${then.id} ${group}`} ...${form} />`;
  };
  return html`
    <h2 id="step" tabindex="-1">${node.name ?? node.id}</h2>
    ${node.description && html`<p>${node.description}</p>`}
    <${NodeFacts} node=${node} known=${known} record=${record} state=${state} />
    <${Again} ...${{ node, known, state, onWanted }} />
    ${pending.map((entry) => html`<${Attempt} key=${entry.node_id} entry=${entry} />`)}
    <${ChildRuns} state=${state} />
    ${error && html`<${Wrong} error=${error} heading=${known.state === "skip" ? "Why" : "Error"} />`}
    ${(state.prompt_messages || partial) &&
    html`
      <section class="part">
        <h3>Conversation</h3>
        <${Conversation} messages=${state.prompt_messages ?? []} partial=${partial} />
        ${change("messages", "Change a message…", state.prompt_messages?.length - 1)}
      </section>
    `}
    ${then && state.context &&
    html`
      <section class="part">
        <h3>What it knows</h3>
        <${Data} value=${state.context} what="what it knows" />
        ${change("context", "Change it…")}
      </section>
    `}
    ${input !== undefined && html`<${Value} heading="Input" value=${input} />`}
    ${places.items &&
    html`<section class="part"><h3>Items</h3>${change("items", "Change the result of an item…")}</section>`}
    ${(output !== undefined || then) &&
    html`
      <${Value} heading="Output" value=${output}>
        ${change("output", known.state === "success" ? "Change the output…" : "Give a result by hand…")}
      <//>
    `}
    <${Parts} parts=${inner?.parts ?? []} then=${then} />
    <div class="buttons">
      ${onLook && html`<button key="look" onClick=${onLook}>Change a value…</button>`}
      <button key="through" onClick=${onThrough}>Through the run…</button>
    </div>
  `;
}

function Value({ heading, value, children }) {
  return html`
    <section class="part">
      <h3>${heading}</h3>
      <${Data} value=${value} what=${heading} />
      ${children}
    </section>
  `;
}

/** A new run in which this step is done again; of a map, if some items failed, also only those. */
function Again({ node, known, state, onWanted }) {
  if (known.state === "pending") return null;
  const failed = Object.keys(state.failed_iterations ?? {}).length;
  return html`
    <div class="buttons">
      <button onClick=${() => onWanted({ kind: "rerun", node: node.id })}>Do this step again…</button>
      ${failed > 0 &&
      html`<button onClick=${() => onWanted({ kind: "failed", node: node.id })}>Only the failed items (${failed})…</button>`}
    </div>
  `;
}

/** A button that opens the form to change one of `places`. */
function Change({ path, places, words, start = 0, onAdd }) {
  const [open, setOpen] = useState(false);
  const [taken, setTaken] = useState(false);
  const button = useRef(null);
  const close = () => {
    setOpen(false);
    setTimeout(() => button.current?.focus());
  };
  const add = (change) => {
    onAdd(change);
    setTaken(true);
    close();
  };
  if (open) return html`<${EditForm} ...${{ path, places, start }} onAdd=${add} onClose=${close} />`;
  return html`
    <div class="buttons"><button ref=${button} onClick=${() => setOpen(true)}>${words}</button></div>
    <p role="status" class=${taken ? "quiet" : "hidden"}>${taken && "Taken. It is among the changes on the way, above."}</p>
  `;
}

function Wrong({ error, heading }) {
  const { message, type, ...more } = error;
  return html`
    <section class="part">
      <h3>${heading}</h3>
      <p class="problem">${message}${type ? ` (${type})` : ""}</p>
      ${Object.keys(more).length > 0 && html`<${Data} value=${more} what="the error" />`}
    </section>
  `;
}

/** The node in the latest checkpoint; read again when something has happened to it, but not for every event. */
function useInner(runId, node, moved, isPast) {
  const { holdfast } = useContext(Server);
  const [inner, setInner] = useState(null);
  const last = useRef(0);
  useEffect(() => {
    if (isPast) return;
    let left = false;
    const timer = setTimeout(async () => {
      last.current = Date.now();
      const checkpoint = await holdfast.checkpoint(runId).catch(() => null);
      if (checkpoint && !left) setInner(innerOf(checkpoint, node.id));
    }, Math.max(0, last.current + PAUSE - Date.now()));
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [runId, node.id, moved, isPast]);
  return inner;
}

function innerOf(checkpoint, id) {
  const inside = ([path]) => path.startsWith(`${id}/`) || path.startsWith(`${id}[`);
  return { record: checkpoint.node_states[id], parts: Object.entries(checkpoint.node_states).filter(inside) };
}

function NodeFacts({ node, known, record, state }) {
  const started = known.started ?? record?.started_at;
  const ended = known.ended ?? record?.completed_at;
  const done = Object.keys(state.completed_iterations ?? {}).length + Object.keys(state.failed_iterations ?? {}).length;
  const total = state.total_iterations;
  return html`
    <dl class="facts">
      <div><dt>Step</dt><dd class="id">${node.id}</dd></div>
      <div><dt>Type</dt><dd>${node.type}</dd></div>
      <div><dt>Status</dt><dd><${Badge} state=${known.state} words=${NODE_STATES} /></dd></div>
      ${known.attempts && html`<div><dt>Attempts</dt><dd>${known.attempts}${known.cached ? ", from the cache" : ""}</dd></div>`}
      ${total !== undefined && html`<div><dt>Items</dt><dd>${known.state === "success" ? total : done} of ${total}</dd></div>`}
      ${state.current_loop !== undefined && html`<div><dt>Rounds</dt><dd>${state.current_loop}</dd></div>`}
      ${started && html`<div><dt>Started</dt><dd><${When} at=${started} /></dd></div>`}
      ${started && html`<div><dt>Took</dt><dd>${duration(started, ended)}${ended ? "" : " so far"}</dd></div>`}
    </dl>
  `;
}

/** What a worker does for this step right now, or will try again. */
function Attempt({ entry }) {
  if (entry.attempt < 2 && !entry.last_failure) return null;
  const before = entry.last_failure ? ` Before it: ${entry.last_failure}` : "";
  return html`<p class="notice">Attempt ${entry.attempt} is ${entry.state}.${before}</p>`;
}

function ChildRuns({ state }) {
  const batches = Object.keys(isObject(state.children) ? state.children : {});
  const runs = state.child_run_id ? [state.child_run_id, ...batches] : batches;
  if (!runs.length) return null;
  return html`
    <section class="part">
      <h3>Runs inside</h3>
      <ul>${runs.map((id) => html`<li key=${id}><a class="id" href="#/run/${encodeURIComponent(id)}">${id}</a></li>`)}</ul>
    </section>
  `;
}

/** Steps inside this one that are not forgotten yet. */
function Parts({ parts, then }) {
  if (!parts.length) return null;
  const places = (path) => (then ? Object.values(placesIn(then.checkpoint, path, false)).flat() : []);
  return html`
    <section class="part">
      <h3>Inside</h3>
      <ul class="parts">
        ${parts.slice(0, 100).map(
          ([path, record]) => html`
            <li key=${path}>
              <span class="id">${path}</span> <${Badge} state=${record.status} words=${NODE_STATES} />
              ${places(path).length > 0 &&
              html`<${Change} key=${then.id} path=${path} places=${places(path)} words="Change…" onAdd=${then.onAdd} />`}
            </li>
          `,
        )}
      </ul>
    </section>
  `;
}

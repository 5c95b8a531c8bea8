// One run, live or at a moment of its past: its picture, its open questions, what has happened, what is known of a step.

import { Component, html, useContext, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { Badge, When } from "./data.js";
import { Compare } from "./diff.js";
import { Family, members, useFamily } from "./family.js";
import { Graph } from "./graph.js";
import { Through } from "./history.js";
import { RunModel } from "./model.js";
import { goTo, placeOf, statesOf, useKept, useMoment } from "./moment.js";
import { NodeDetail } from "./node.js";
import { PlanDialog } from "./plan.js";
import { Question } from "./questions.js";
import { Server, useRefreshed } from "./server.js";
import { Travel } from "./travel.js";
import { NODE_STATES, RUN_STATES, clock, label, rootOf, sentence, short } from "./words.js";

const SHOWN = 100;
const ENDED = new Set(["completed", "failed", "cancelled"]);
const MODELS = new Set(["agent", "llm", "map", "graph-orchestrator", "linear-orchestrator"]);

/** `seq`: the number of the checkpoint that is looked at; null for now. */
export function RunView({ runId, seq, settings }) {
  const { holdfast } = useContext(Server);
  const run = useRefreshed(() => holdfast.getRun(runId), 5000, [runId]);
  const definition = useRefreshed(useOnce(() => holdfast.definition(runId), runId), 5000, [runId]);
  const questions = useRefreshed(() => questionsOf(holdfast, runId), 4000, [runId]);
  const [selected, setSelected] = useState(null);
  const live = useLive(runId, definition.value, () => (run.reload(), questions.reload()));
  const inside = useMemo(() => insideOf(runId, questions.value ?? []), [questions.value]);
  const moment = useMoment(runId, seq, live.model.events);
  const kept = useKept(runId, live.model.resumed);
  const family = useFamily(runId);
  const changes = useChanges(moment);
  const [wanted, setWanted] = useState(null);
  const [comparing, setComparing] = useState(null);
  const [through, setThrough] = useState(null);
  // The heading is the same element from the first moment on: it has the focus when one comes here by a link.
  const flow = definition.value;
  const heading = html`<h1 tabindex="-1">${flow ? (flow.name ?? label(flow.id)) : "Run"}</h1>`;
  if (run.error) return html`${heading}<p class="problem" role="alert">${run.error.message}</p>`;
  if (!run.value || !flow) return html`${heading}<p role="status">Loading…</p>`;
  const names = new Map((flow.nodes ?? []).map((entry) => [entry.id, entry.name ?? entry.id]));
  const node = flow.nodes?.find(({ id }) => id === selected);
  const { model } = live;
  const ended = ENDED.has(run.value.status);
  const last = model.events.at(-1)?.seq ?? null;
  const states = moment ? statesOf(moment.checkpoint) : withKept(model.states(ended ? [] : inside), kept);
  const want = (what) => setWanted({ ...fromWhere(moment), changes: changes.list, ...what });
  // Until the moment is read there is nothing to say of it; what is now would be taken for what was.
  const unread = moment !== null && !moment.checkpoint;
  const dimmed = moment !== null && (moment.reading || Boolean(moment.error));
  const detail = node && {
    runId,
    node,
    known: states.get(node.id),
    onWanted: want,
    onThrough: () => setThrough({ node: node.id, asked: (through?.asked ?? 0) + 1 }),
    ...(moment ? pastOf(moment, changes) : presentOf(run.value, model, node)),
  };
  return html`
    ${heading}
    <${Head} run=${run.value} definition=${flow} settings=${settings} onChange=${run.reload} />
    ${live.lost && html`<p class="notice lost" role="status">The connection is lost. Trying again; nothing is missed.</p>`}
    <div hidden=${moment !== null}><${OpenQuestions} requests=${questions.value ?? []} model=${model} /></div>
    <${Travel}
      ...${{ run: run.value, ended, moment, last }}
      changes=${changes.list}
      onRemove=${changes.remove}
      onWanted=${want}
      onCompare=${() => setComparing({ start: moment?.id ?? null, asked: (comparing?.asked ?? 0) + 1 })}
    />
    <div class="columns ${dimmed ? "dimmed" : ""}" aria-busy=${Boolean(moment?.reading)}>
      <section aria-labelledby="steps">
        <h2 id="steps">${moment ? "Steps, as they were" : "Steps"}</h2>
        <${Legend} />
        <${Graph} definition=${flow} states=${states} selected=${selected} onSelect=${setSelected} />
      </section>
      <section aria-labelledby="step" class="side">
        ${node && !unread
          ? html`<${NodeDetail} key=${node.id} ...${detail} />`
          : html`
              <h2 id="step">A step</h2>
              <p class="quiet">Choose a step in the picture to see what went in and what came out.</p>
            `}
      </section>
    </div>
    ${through &&
    html`
      <${Through}
        key=${through.node}
        ...${{ runId, seq, name: names.get(through.node), moved: model.moved.get(through.node), ...through }}
        onClose=${() => setThrough(null)}
      />
    `}
    ${comparing &&
    html`
      <${Compare}
        key=${comparing.start}
        ...${{ runId, names, listed: model.checkpoints, relatives: members(family), ...comparing }}
        onClose=${() => setComparing(null)}
      />
    `}
    <${Family} runId=${runId} trees=${family} />
    <${Timeline} ...${{ runId, seq, names }} events=${model.events} />
    <${Checkpoints} runId=${runId} seq=${seq} checkpoints=${model.checkpoints} />
    ${wanted && html`<${PlanDialog} ...${{ runId, flow, wanted }} onClose=${() => setWanted(null)} />`}
  `;
}

/** What was kept is not always done: it may have been skipped, or have failed and been handled. */
function withKept(states, kept) {
  for (const [id, known] of states) if (known.kept && kept.has(id)) states.set(id, { ...kept.get(id), kept: true });
  return states;
}

/** What a step's detail needs of now. */
function presentOf(run, model, node) {
  const last = model.events.at(-1);
  return {
    pending: run.pending.filter((entry) => rootOf(entry.node_id) === node.id),
    moved: model.moved.get(node.id),
    partial: model.partial.get(node.id),
    onLook: last ? () => goTo(run.run_id, last.seq) : null,
  };
}

/** And of a moment in the past. */
function pastOf(moment, changes) {
  return { pending: [], then: { id: moment.id, checkpoint: moment.checkpoint, onAdd: changes.add } };
}

function fromWhere(moment) {
  if (!moment) return { where: "where the run is now" };
  return { checkpointId: moment.id, where: `checkpoint ${moment.position} of ${moment.numbers.length} (@${moment.seq})` };
}

/** The changes on the way into a new run. They belong to the moment at which they were made. */
function useChanges(moment) {
  const [all, setAll] = useState({});
  const list = (moment && all[moment.id]) ?? [];
  const without = (address) => list.filter((change) => change.address !== address);
  return {
    list,
    add: (change) => setAll({ ...all, [moment.id]: [...without(change.address), change] }),
    remove: (address) => setAll({ ...all, [moment.id]: without(address) }),
  };
}

/** `load`, but only until it has succeeded: a run's definition never changes. */
function useOnce(load, key) {
  return useMemo(() => {
    let known = null;
    return async () => (known ??= await load());
  }, [key]);
}

/** Questions of this run and of the flows inside it. They are listed by the outermost run, whose id comes first. */
async function questionsOf(holdfast, runId) {
  const found = await holdfast.inbox({ run: runId.split("/")[0], limit: 200 });
  return found.filter((request) => request.run_id === runId || request.run_id.startsWith(`${runId}/`));
}

/** The nodes in whose inner flows a question is open. */
function insideOf(runId, requests) {
  const deeper = requests.filter((request) => request.run_id !== runId);
  return deeper.map((request) => rootOf(request.run_id.slice(runId.length + 1)));
}

/** The stream, as long as this run is shown. Draws again when the model says so. */
function useLive(runId, definition, onStep) {
  const server = useContext(Server);
  const model = useMemo(() => new RunModel(), [runId]);
  const [lost, setLost] = useState(false);
  const [, draw] = useState(0);
  const step = useRef(onStep);
  step.current = onStep;
  useEffect(() => {
    if (!definition) return;
    const ending = new AbortController();
    const steps = later(() => step.current(), 300);
    model.tell = () => draw((count) => count + 1);
    const options = {
      after: model.last,
      tokens: (definition.nodes ?? []).some((node) => MODELS.has(node.type)),
      signal: ending.signal,
      onState: (state) => setLost(state === "lost"),
      onEvent: (event) => {
        model.take(event);
        if (isTurn(event)) steps();
      },
    };
    server.holdfast.stream(runId, options).then(steps, (error) => server.failed(error));
    return () => ending.abort();
  }, [runId, definition]);
  return { model, lost };
}

/** Whether the run's own status, or its questions, may be others now. */
function isTurn(event) {
  return /^(run_|child_|approval$|input_received$)/.test(event.event);
}

/** `action`, once, a moment after the last time it was asked for; and again later, because lists lag behind runs. */
function later(action, milliseconds) {
  let timers = [];
  return () => {
    timers.forEach(clearTimeout);
    timers = [milliseconds, milliseconds * 5].map((pause) => setTimeout(action, pause));
  };
}

function Head({ run, definition, settings, onChange }) {
  const parent = run.run_id.split("/").slice(0, -1).join("/");
  const link = temporalLink(settings, run.run_id);
  return html`
    ${definition.description && html`<p>${definition.description}</p>`}
    <dl class="facts">
      <div><dt>Status</dt><dd><span role="status"><${Badge} state=${run.status} words=${RUN_STATES} /></span></dd></div>
      <div><dt>Run</dt><dd class="id">${run.run_id}</dd></div>
      ${parent &&
      html`<div><dt>Inside</dt><dd><a class="id" href="#/run/${encodeURIComponent(parent)}">${parent}</a></dd></div>`}
      <div><dt>Started</dt><dd><${When} at=${run.started_at} /></dd></div>
      ${run.closed_at && html`<div><dt>Ended</dt><dd><${When} at=${run.closed_at} /></dd></div>`}
    </dl>
    <${Actions} run=${run} onChange=${onChange} />
    ${link && html`<p><a href=${link} rel="noreferrer">This run in the Temporal Web UI</a></p>`}
  `;
}

function temporalLink(settings, runId) {
  const base = settings?.temporal_ui;
  if (!base || !/^https?:\/\//.test(base)) return null;
  return `${base.replace(/\/$/, "")}/namespaces/default/workflows/${encodeURIComponent(runId)}`;
}

function Actions({ run, onChange }) {
  const server = useContext(Server);
  const [said, setSaid] = useState(null);
  const [asking, setAsking] = useState(null);
  const act = async (words, action) => {
    setSaid({ text: `${words}…` });
    try {
      await action();
      setSaid({ text: `${words}: the server has taken it.` });
      // The run takes it up a moment later.
      [200, 1000, 2500].forEach((pause) => setTimeout(onChange, pause));
    } catch (error) {
      server.failed(error);
      setSaid({ text: `Not done: ${error.message}`, wrong: true });
    }
  };
  const { holdfast } = server;
  const id = run.run_id;
  const open = !ENDED.has(run.status);
  // A flow inside another run goes with that.
  const isInner = id.includes("/");
  const paused = run.status === "paused";
  const pause = () => act("Pause", () => holdfast.pause(id));
  const goOn = () => act("Continue", () => holdfast.continueRun(id));
  const remove = () =>
    act("Delete", async () => {
      await holdfast.deleteRun(id);
      // Lists lag behind.
      server.gone.add(id);
      location.hash = "#/runs";
    });
  const decided = { cancel: () => act("Cancel", () => holdfast.cancel(id)), delete: remove };
  const sure = (yes) => {
    setAsking(null);
    if (yes) decided[asking]();
  };
  return html`
    <div class="buttons">
      ${open && !paused && html`<button key="pause" onClick=${pause}>Pause</button>`}
      ${paused && html`<button key="continue" onClick=${goOn}>Continue</button>`}
      ${open && html`<button key="cancel" class="no" onClick=${() => setAsking("cancel")}>Cancel…</button>`}
      ${!open && !isInner && html`<button key="delete" class="no" onClick=${() => setAsking("delete")}>Delete…</button>`}
    </div>
    <p role="status" class=${said?.wrong ? "problem" : said ? "notice" : "hidden"}>${said?.text}</p>
    ${asking && html`<${Sure} ...${QUESTIONS[asking]} onNo=${() => sure(false)} onYes=${() => sure(true)} />`}
  `;
}

/** What is asked before something that cannot be taken back. */
const QUESTIONS = {
  cancel: {
    title: "Cancel this run?",
    means: "It ends, and its open questions are closed. What it has done is kept.",
    no: "Let it run",
    yes: "Yes, cancel it",
  },
  delete: {
    title: "Delete this run?",
    means: "It is gone for good, with its checkpoints, its files and the runs inside it. Runs that were begun from it stay, with all they need.",
    no: "Keep it",
    yes: "Yes, delete it",
  },
};

function Sure({ title, means, no, yes, onYes, onNo }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`
    <dialog ref=${dialog} onCancel=${onNo} aria-labelledby="sure">
      <h2 id="sure">${title}</h2>
      <p>${means}</p>
      <div class="buttons">
        <button onClick=${onNo}>${no}</button>
        <button class="no" onClick=${onYes}>${yes}</button>
      </div>
    </dialog>
  `;
}

/** Stays where it is when it was answered here, so that what became of it can be read. */
function OpenQuestions({ requests, model }) {
  const [answered, setAnswered] = useState(() => new Map());
  const listed = requests.filter((request) => !model.closed.has(request.id) || answered.has(request.id));
  const seen = new Set(listed.map((request) => request.id));
  const shown = [...[...answered.values()].filter((request) => !seen.has(request.id)), ...listed];
  if (!shown.length) return null;
  return html`
    <section aria-labelledby="questions">
      <h2 id="questions">Waits for an answer</h2>
      ${shown.map((request) => {
        const done = () => setAnswered((before) => new Map(before).set(request.id, request));
        return html`<${Question} key=${request.id} request=${request} showRun=${false} onDone=${done} />`;
      })}
    </section>
  `;
}

function Legend() {
  const entries = Object.entries(NODE_STATES);
  return html`
    <p class="legend">
      ${entries.map(([state, words]) => html`<span key=${state}><i class="dot ${state}"></i>${words}</span>`)}
    </p>
  `;
}

/** Newest last. Only the end of a long list is drawn, until somebody asks for more. */
function Timeline({ runId, seq, events, names }) {
  const [shown, setShown] = useState(SHOWN);
  const hidden = Math.max(0, events.length - shown);
  return html`
    <section aria-labelledby="timeline">
      <h2 id="timeline">What has happened</h2>
      ${hidden > 0 &&
      html`<button onClick=${() => setShown(shown + 500)}>Show ${Math.min(500, hidden)} earlier (of ${hidden})</button>`}
      <ol class="timeline">
        ${events.slice(hidden).map((event) => {
          const line = { runId, event, names, here: event.seq === seq };
          return html`<${Happened} key=${event.id} ...${line} />`;
        })}
      </ol>
    </section>
  `;
}

/** What has happened does not change: a line is drawn once, and when it is looked at. */
class Happened extends Component {
  shouldComponentUpdate(next) {
    return ["event", "here"].some((name) => next[name] !== this.props[name]);
  }

  render({ runId, event, names, here }) {
    return html`
      <li data-event=${event.id} class="${event.event} ${here ? "here" : ""}" aria-current=${here ? "true" : undefined}>
        <${ThenLink} id="${runId}@${event.seq}">
          <time datetime=${event.at} title=${new Date(event.at).toLocaleString()}>${clock(event.at)}</time>
        <//>
        <span>${short(sentence(event, names), 300)}</span>
      </li>
    `;
  }
}

function ThenLink({ id, children }) {
  return html`<a class="moment" href=${placeOf(id)}>${children}</a>`;
}

function Checkpoints({ runId, seq, checkpoints }) {
  const [shown, setShown] = useState(20);
  const newest = checkpoints.slice(-shown).reverse();
  return html`
    <section aria-labelledby="checkpoints">
      <h2 id="checkpoints">Checkpoints</h2>
      ${!newest.length
        ? html`<p class="quiet">none yet</p>`
        : html`<p class="quiet">Choose one to see the run as it was then, and to go on from there.</p>`}
      <ul class="checkpoints">
        ${newest.map((entry) => html`<${CheckpointRow} key=${entry.id} ...${{ runId, seq, entry }} />`)}
      </ul>
      ${checkpoints.length > shown &&
      html`<button onClick=${() => setShown(shown + 100)}>Show more (of ${checkpoints.length})</button>`}
    </section>
  `;
}

function CheckpointRow({ runId, seq, entry }) {
  const { holdfast } = useContext(Server);
  const here = entry.id === `${runId}@${seq}`;
  const [text, setText] = useState(null);
  const load = (event) => {
    if (!event.target.open || text !== null) return;
    holdfast.checkpoint(runId, entry.id).then(
      (found) => setText(JSON.stringify(found, null, 2)),
      (error) => setText(error.message),
    );
  };
  return html`
    <li class=${here ? "here" : ""} aria-current=${here ? "true" : undefined}>
      <${ThenLink} id=${entry.id}>
        <time datetime=${entry.at}>${clock(entry.at)}</time> ${label(entry.event)}${entry.path && `, ${entry.path}`}${" "}
        <span class="id quiet">@${entry.id.split("@").pop()}</span>
      <//>
      ${here && html` <b>(you look at this one)</b>`}
      <details onToggle=${load}>
        <summary>Show all <span class="hidden">of ${entry.id}</span></summary>
        <pre tabindex="0">${text ?? "Loading…"}</pre>
      </details>
    </li>
  `;
}

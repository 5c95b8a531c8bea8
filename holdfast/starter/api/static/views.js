// The inbox, the list of runs with the way to import one, and the page that starts one.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Badge, When } from "./data.js";
import { Question } from "./questions.js";
import { Server, useRefreshed } from "./server.js";
import { RUN_STATES, label, moment, newKey } from "./words.js";

const MOST = 200;

/** Open questions. Those that somebody has begun to answer here stay, whatever becomes of them elsewhere. */
export function InboxView({ onCount }) {
  const { holdfast } = useContext(Server);
  const listed = useRefreshed(() => holdfast.inbox({ limit: MOST }), 4000);
  const kept = useRef(new Map());
  const [closed, setClosed] = useState(() => new Map());
  const now = listed.value ?? [];
  const open = new Set(now.map((request) => request.id));
  const whole = listed.value !== null && now.length < MOST;
  const gone = [...kept.current.values()].filter((request) => whole && !open.has(request.id));
  useEffect(() => {
    onCount(now.length);
    for (const request of gone.filter(({ id }) => !closed.has(id))) {
      whoClosed(holdfast, request).then((text) => setClosed((before) => new Map(before).set(request.id, text)));
    }
  }, [listed.value]);
  const shown = [...gone, ...now].sort((one, other) => one.created_at.localeCompare(other.created_at));
  const keep = (request) => kept.current.set(request.id, request);
  return html`
    <h1 tabindex="-1">Inbox</h1>
    ${!listed.value && !listed.error && html`<p role="status">Loading…</p>`}
    ${listed.error && html`<p class="problem" role="alert">${listed.error.message}</p>`}
    ${listed.value &&
    !shown.length &&
    html`<p class="empty" role="status">Nothing waits for an answer. New questions appear here by themselves.</p>`}
    ${shown.map((request) => {
      const why = open.has(request.id) ? null : closed.get(request.id);
      const kept = () => keep(request);
      return html`<${Question} key=${request.id} request=${request} closed=${why} onTouched=${kept} onDone=${kept} />`;
    })}
    ${now.length >= MOST && html`<p class="quiet">These are the ${MOST} oldest; more follow when they are answered.</p>`}
  `;
}

/** Why a question is no longer open, for the person who was about to answer it. */
async function whoClosed(holdfast, request) {
  const checkpoint = await holdfast.checkpoint(request.run_id).catch(() => null);
  const first = checkpoint?.answered_inputs?.[request.id];
  return first ? `Already answered by ${first.by ?? "somebody"} at ${moment(first.at)}.` : "This question is no longer open.";
}

export function RunsView() {
  const { holdfast, failed, gone } = useContext(Server);
  const [filter, setFilter] = useState({ status: "", flow: "" });
  const first = useRefreshed(() => holdfast.listRuns({ ...filter, limit: 25 }), 5000, [filter.status, filter.flow]);
  const [more, setMore] = useState({ runs: [], cursor: null });
  useEffect(() => setMore({ runs: [], cursor: null }), [filter.status, filter.flow]);
  const begun = more.runs.length > 0;
  const cursor = begun ? more.cursor : first.value?.cursor;
  const take = (page) => setMore({ runs: [...more.runs, ...page.runs], cursor: page.cursor });
  const next = () => holdfast.listRuns({ ...filter, limit: 25, cursor }).then(take, failed);
  const runs = [...new Map([...more.runs, ...(first.value?.runs ?? [])].map((run) => [run.run_id, run])).values()];
  runs.sort((one, other) => other.started_at.localeCompare(one.started_at));
  const there = runs.filter((run) => !gone.has(run.run_id));
  return html`
    <h1 tabindex="-1">Runs</h1>
    <${Filters} filter=${filter} onFilter=${setFilter} />
    <${Import} />
    ${first.error && html`<p class="problem" role="alert">${first.error.message}</p>`}
    <p class="hidden" role="status">${first.value ? `${there.length} runs shown` : "Loading"}</p>
    ${first.value && !there.length && html`<p class="empty">No runs.</p>`}
    <ul class="runs">${there.map((run) => html`<${RunRow} key=${run.run_id} run=${run} />`)}</ul>
    ${cursor && html`<div class="buttons"><button onClick=${next}>More</button></div>`}
  `;
}

/** A run from a file that was downloaded, here or elsewhere. */
function Import() {
  const server = useContext(Server);
  const [said, setSaid] = useState(null);
  // An encrypted file, until its key is there.
  const [locked, setLocked] = useState(null);
  const input = useRef(null);
  const take = async (file, key) => {
    setSaid({ text: `Importing ${file.name}…` });
    try {
      const { run_id: runId, notes = [] } = await server.holdfast.importRun(file, { key });
      setLocked(null);
      if (notes.length) setSaid({ notes, runId });
      else location.hash = `#/run/${encodeURIComponent(runId)}`;
    } catch (error) {
      server.failed(error);
      setLocked(["export/locked", "export/wrong-key", "export/bad-key"].includes(error.code) ? file : null);
      if (error.code === "export/locked") setSaid(null);
      else setSaid({ text: `${file.name} was not imported: ${whyNot(error)}`, wrong: true });
    }
  };
  const open = (key) => take(locked, key);
  const choose = () => {
    const [file] = input.current.files;
    if (file) take(file);
    // So that the same file can be chosen again.
    input.current.value = "";
  };
  return html`
    <div class="import">
      <button aria-describedby="import-means" onClick=${() => input.current.click()}>Import…</button>
      <input ref=${input} type="file" accept=".json,.yaml,.yml" hidden aria-label="A downloaded checkpoint" onChange=${choose} />
      <span class="quiet" id="import-means">A downloaded checkpoint becomes a run again: paused, until you let it go on.</span>
    </div>
    ${locked && html`<${KeyForm} key=${locked.name} file=${locked} onKey=${open} onLeave=${() => setLocked(null)} />`}
    <div role=${said?.wrong ? "alert" : "status"} class="import-said ${said?.wrong ? "problem" : said ? "notice" : "hidden"}">
      ${said?.text}
      ${said?.notes &&
      html`
        Imported, but not all of it: <ul>${said.notes.map((note) => html`<li key=${note}>${note}</li>`)}</ul>
        <a href="#/run/${encodeURIComponent(said.runId)}">Look at the run</a>
      `}
    </div>
  `;
}

function KeyForm({ file, onKey, onLeave }) {
  const [text, setText] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  return html`
    <form class="card" onSubmit=${(event) => (event.preventDefault(), onKey(text.trim()))}>
      <div class="field">
        <label for="import-key">The key of ${file.name}</label>
        <input
          id="import-key"
          type="password"
          autocomplete="off"
          required
          ref=${field}
          value=${text}
          onInput=${(event) => setText(event.target.value)}
        />
        <p class="quiet">It is encrypted. The key is sent with the file, and kept nowhere.</p>
      </div>
      <div class="buttons">
        <button type="submit" class="yes">Open it</button>
        <button type="button" onClick=${onLeave}>Leave it</button>
      </div>
    </form>
  `;
}

function whyNot(error) {
  if (error.status === undefined) return "the server could not be reached";
  return error.message;
}

function Filters({ filter, onFilter }) {
  const set = (name) => (event) => onFilter({ ...filter, [name]: event.target.value.trim() });
  return html`
    <div class="filters">
      <div class="field">
        <label for="status">Status</label>
        <select id="status" value=${filter.status} onChange=${set("status")}>
          <option value="">all</option>
          ${Object.entries(RUN_STATES).map(([status, words]) => html`<option key=${status} value=${status}>${words}</option>`)}
        </select>
      </div>
      <div class="field">
        <label for="flow">Flow</label>
        <input id="flow" type="search" placeholder="all" value=${filter.flow} onChange=${set("flow")} />
      </div>
    </div>
  `;
}

function RunRow({ run }) {
  return html`
    <li class="card row">
      <div>
        <a href="#/run/${encodeURIComponent(run.run_id)}"><b>${label(run.flow_id ?? "run")}</b></a>
        <div class="id quiet">${run.run_id}</div>
      </div>
      <${Badge} state=${run.status} words=${RUN_STATES} />
      <div class="quiet">${run.total > 0 && html`${run.done} of ${run.total} steps, `}<${When} at=${run.started_at} /></div>
    </li>
  `;
}

export function StartView() {
  const server = useContext(Server);
  const flows = useRefreshed(() => server.holdfast.flows(), 60_000);
  const [chosen, setChosen] = useState("");
  const [text, setText] = useState("{}");
  const [said, setSaid] = useState(null);
  const attempt = useRef({ what: null, key: null });
  const start = async (event) => {
    event.preventDefault();
    let input;
    try {
      input = JSON.parse(text);
    } catch (error) {
      setSaid(`The input is not valid JSON: ${error.message}`);
      return;
    }
    // A second click after a lost reply finds the run that the first one started.
    if (attempt.current.what !== chosen + text) attempt.current = { what: chosen + text, key: newKey() };
    setSaid(null);
    try {
      const { run_id: runId } = await server.holdfast.startRun({ flow: chosen, input, key: attempt.current.key });
      attempt.current = { what: null, key: null };
      location.hash = `#/run/${encodeURIComponent(runId)}`;
    } catch (error) {
      server.failed(error);
      setSaid(error.status === undefined ? "The server could not be reached. Try again." : error.message);
    }
  };
  const flow = flows.value?.find(({ name }) => name === chosen);
  return html`
    <h1 tabindex="-1">Start a run</h1>
    ${flows.value?.length === 0 &&
    html`<p class="empty">The catalogue is empty: start the server with --flows FOLDER.</p>`}
    <form class="card" onSubmit=${start}>
      <div class="field">
        <label for="catalogue">Flow</label>
        <select id="catalogue" required value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
          <option value="">choose one</option>
          ${(flows.value ?? []).map(({ name, title }) => html`<option key=${name} value=${name}>${title ?? label(name)}</option>`)}
        </select>
        ${flow?.description && html`<p class="quiet">${flow.description}</p>`}
      </div>
      <div class="field">
        <label for="input">Input <span class="quiet">(JSON)</span></label>
        <textarea
          id="input"
          class="code"
          rows="8"
          spellcheck=${false}
          value=${text}
          onInput=${(event) => setText(event.target.value)}
        />
      </div>
      <p class=${said ? "problem" : "hidden"} role="alert">${said}</p>
      <div class="buttons"><button type="submit" class="yes">Start</button></div>
    </form>
  `;
}

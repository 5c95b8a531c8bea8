// The inbox, the list of runs, and the page that starts one.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { FlowChoice } from "./catalogue.js";
import { Badge, When } from "./data.js";
import { Import } from "./import.js";
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
  return html`
    <h1 tabindex="-1">Start a run</h1>
    <form class="card" onSubmit=${start}>
      <${FlowChoice} id="catalogue" title="Flow" chosen=${chosen} onChosen=${setChosen} />
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

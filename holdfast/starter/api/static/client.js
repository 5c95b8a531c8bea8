// The browser client of Holdfast: every route of the HTTP API as a method, and a stream that comes back by itself.
//
//   import { Holdfast } from "/console/client.js";
//   const holdfast = new Holdfast({ token: "…" });
//   const { run_id } = await holdfast.startRun({ flow: "hello", input: { name: "World" } });
//   await holdfast.stream(run_id, { onEvent: (event) => console.log(event.event, event.path) });
//
// No dependency, no build step; runs in any browser with ES modules, and in Node.

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;
// The server says something at least every 15 seconds. A connection that has been silent for three times as long is
// dead, even if nobody has told the browser: a laptop was closed, a network was changed.
const SILENCE = 45_000;

/** What the server said is wrong: `status` of HTTP, stable `code`, and `detail` for people. */
export class HoldfastError extends Error {
  constructor(status, code, detail, more = {}) {
    super(detail);
    this.name = "HoldfastError";
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.faults = more.faults ?? [];
    // Of `run/resumed`: the run that was first.
    this.winner = more.winner ?? null;
    this.retryAfter = more.retryAfter ?? null;
  }
}

/** One server, one caller. `base` is its address ("" for the page's own), `token` the bearer token if it wants one. */
export class Holdfast {
  constructor({ base = "", token = null } = {}) {
    this.base = base.replace(/\/$/, "");
    this.token = token;
  }

  /** Starts `flow` (a name of the catalogue) or `definition`. The same `key` again gives the same run. */
  startRun({ flow, definition, input, runId, key } = {}) {
    return this.#post("/runs", { flow, definition, input, run_id: runId }, key);
  }

  getRun(runId) {
    return this.#get(run(runId));
  }

  /** A page of runs, newest first: `{runs, cursor}`. */
  listRuns({ flow, status, limit, cursor } = {}) {
    return this.#get("/runs", { flow, status, limit, cursor });
  }

  cancel(runId) {
    return this.#post(`${run(runId)}/cancel`);
  }

  pause(runId) {
    return this.#post(`${run(runId)}/pause`);
  }

  continueRun(runId) {
    return this.#post(`${run(runId)}/continue`);
  }

  /**
   * A new run in place of one that has ended: it does what the checkpoint (by default the latest) had not done.
   *
   * `edits` maps `node:field` to a value. A run is resumed once: of two who try, one gets `run/resumed` with the `winner`.
   */
  resume(runId, { key, ...changes } = {}) {
    return this.#post(`${run(runId)}/resume`, changed(changes), key);
  }

  /** A new run beside the old one, which may be running. `rerun` names nodes to do again. The same `key`: the same fork. */
  fork(runId, { key, ...changes } = {}) {
    return this.#post(`${run(runId)}/fork`, changed(changes), key);
  }

  /** What would become of each node in such a run: `{kept, forgotten, reset, fresh, edited, changed, warnings}`. */
  plan(runId, changes = {}) {
    return this.#post(`${run(runId)}/plan`, changed(changes));
  }

  /** The run's family, oldest first, each with its `children`. */
  tree(runId) {
    return this.#get(`${run(runId)}/tree`);
  }

  /** How a node, or a field of it, changed through the run. */
  history(runId, { node, field } = {}) {
    return this.#get(`${run(runId)}/history`, { node, field });
  }

  /** What is different between two checkpoints; a run's id means its latest. */
  diff(left, right) {
    return this.#get("/diff", { left, right });
  }

  /**
   * A checkpoint as a file, `{name, blob}`. It has everything in it, also what is hidden elsewhere; with a `key`, a
   * passphrase or "base64:…", it is encrypted. `madeFor`: the namespace where it is to be imported. `files`: false to
   * leave those of agents out.
   */
  async exportRun(runId, { checkpointId, key, madeFor, files } = {}) {
    const where = `${run(runId)}/export${query({ checkpoint_id: checkpointId, for: madeFor, files })}`;
    const reply = await this.#fetch(where, { headers: locked(key) });
    const name = /filename="([^"]+)"/.exec(reply.headers.get("content-disposition") ?? "")?.[1] ?? "checkpoint.json";
    return { name, blob: await reply.blob() };
  }

  /**
   * A run from such a file (text or Blob), paused unless `go` is true. The same file again gives the same run. `key` is
   * what it was encrypted with.
   */
  async importRun(file, { go, key } = {}) {
    const headers = { "Content-Type": "application/octet-stream", ...locked(key) };
    return (await this.#fetch(`/imports${query({ run: go })}`, { method: "POST", headers, body: file })).json();
  }

  /**
   * A run from a checkpoint alone (text or Blob of JSON), ours or one that Dynamiq wrote, with `flow` (a name of the
   * catalogue) or `definition`. `notes` of the reply say what could not be carried.
   */
  async importCheckpoint(file, { flow, definition, go } = {}) {
    // As it is written: parsed here, 8.0 would become 8, and its checksum would not fit any more.
    const checkpoint = typeof file === "string" ? file : await file.text();
    const body = `{"checkpoint": ${checkpoint}, ${JSON.stringify({ flow, definition }).slice(1)}`;
    const headers = { "Content-Type": "application/json" };
    return (await this.#fetch(`/imports${query({ run: go })}`, { method: "POST", headers, body })).json();
  }

  /** Deletes a run that has ended. */
  async deleteRun(runId) {
    await this.#fetch(run(runId), { method: "DELETE" });
  }

  async checkpoints(runId, { limit } = {}) {
    return (await this.#get(`${run(runId)}/checkpoints`, { limit })).checkpoints;
  }

  checkpoint(runId, checkpointId = "latest") {
    return this.#get(`${run(runId)}/checkpoints/${path(checkpointId)}`);
  }

  transitions(runId, { after } = {}) {
    return this.#get(`${run(runId)}/transitions`, { after });
  }

  definition(runId) {
    return this.#get(`${run(runId)}/definition`);
  }

  async flows() {
    return (await this.#get("/flows")).flows;
  }

  /** The open questions, oldest first; of one run and what is inside it, or for one person. */
  async inbox({ run, to, limit } = {}) {
    return (await this.#get("/inbox", { run, to, limit })).requests;
  }

  /** Answers a question by its id alone. `answer`: `{is_approved, feedback, choice, data}`, what its kind asks for. */
  answer(requestId, answer) {
    return this.#post(`/inbox/${encodeURIComponent(requestId)}`, answer);
  }

  /** Answers a question of a run: `message` is `{request_id | entity_id, data}`. The same `key` is the same answer. */
  sendInput(runId, message, { key } = {}) {
    return this.#post(`${run(runId)}/input`, { event: "approval", ...message }, key);
  }

  /**
   * Every event of a run after number `after`, in order and once, until the run ends; then the promise is fulfilled.
   *
   * A lost connection is made again, from the last event on. `onState` hears "connected" and "lost". With `tokens`,
   * events named `tokens` without an id bring partial texts. `signal` ends it early, without an error. What cannot get
   * better by waiting (no such run, no token) is thrown.
   */
  async stream(runId, { after = 0, tokens = false, onEvent, onState = () => {}, signal } = {}) {
    let last = after;
    let failures = 0;
    const take = (event) => {
      if (event.id != null && event.id <= last) return;
      last = event.id ?? last;
      failures = 0;
      onEvent(event);
    };
    while (!signal?.aborted) {
      let pause = 0;
      try {
        if (await this.#streamOnce(runId, last, tokens, take, onState, signal)) return;
      } catch (error) {
        if (signal?.aborted) return;
        if (!isTemporary(error)) throw error;
        pause = (error.retryAfter ?? 0) * 1000;
      }
      if (signal?.aborted) return;
      onState("lost");
      await sleep(Math.max(pause, backoff(failures++)), signal);
    }
  }

  /** One connection. True when the run has ended, false when only the connection has. */
  async #streamOnce(runId, last, tokens, take, onState, signal) {
    const own = new AbortController();
    const stop = () => own.abort();
    signal?.addEventListener("abort", stop);
    let watchdog = setTimeout(stop, SILENCE);
    try {
      const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": String(last) } : {}) };
      const url = `${run(runId)}/stream${query({ tokens: tokens || null })}`;
      const reply = await this.#fetch(url, { headers, signal: own.signal, cache: "no-store" });
      onState("connected");
      for await (const event of serverSentEvents(reply.body, () => {
        clearTimeout(watchdog);
        watchdog = setTimeout(stop, SILENCE);
      })) {
        if (event.name === "end") return true;
        // A handler's own mistake is not a lost connection, and must not be tried again for ever.
        handle(take, JSON.parse(event.data));
      }
      return false;
    } finally {
      clearTimeout(watchdog);
      signal?.removeEventListener("abort", stop);
      own.abort();
    }
  }

  async #get(where, params = {}) {
    return (await this.#fetch(where + query(params))).json();
  }

  async #post(where, body, key) {
    const headers = { "Content-Type": "application/json", ...(key ? { "Idempotency-Key": key } : {}) };
    const text = body === undefined ? undefined : JSON.stringify(body);
    return (await this.#fetch(where, { method: "POST", headers, body: text })).json();
  }

  async #fetch(where, options = {}) {
    const headers = { ...options.headers, ...(this.token ? { Authorization: `Bearer ${this.token}` } : {}) };
    const reply = await fetch(this.base + where, { ...options, headers });
    if (!reply.ok) throw await problem(reply);
    return reply;
  }
}

/** Whether waiting may help: no connection, a server that is not ready, too many requests. */
export function isTemporary(error) {
  if (error instanceof HandlerError) return false;
  return !(error instanceof HoldfastError) || error.status >= 500 || error.status === 429;
}

class HandlerError extends Error {}

function handle(take, event) {
  try {
    take(event);
  } catch (error) {
    throw new HandlerError("an event could not be handled", { cause: error });
  }
}

async function problem(reply) {
  const said = await reply.json().catch(() => ({}));
  const code = said.title ?? `http/${reply.status}`;
  const detail = said.detail ?? (reply.statusText || `the server answered ${reply.status}`);
  const retryAfter = Number(reply.headers.get("retry-after")) || null;
  return new HoldfastError(reply.status, code, detail, { faults: said.faults, winner: said.winner, retryAfter });
}

/** Parses a body of Server-Sent Events. `onSign` hears every sign of life, comments included. */
async function* serverSentEvents(body, onSign) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      onSign();
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event !== null) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}

function changed({ checkpointId, input, edits, definition, keep, runId, rerun, onlyFailed }) {
  const more = { edits, definition, keep, rerun, only_failed: onlyFailed };
  return { checkpoint_id: checkpointId, input_data: input, run_id: runId, ...more };
}

// A header is bytes to HTTP and Latin-1 to a browser; the server wants the bytes of UTF-8, as in a key file.
function locked(key) {
  if (key == null) return {};
  if (key !== key.trim()) throw new TypeError("a key in a header cannot begin or end with a space");
  return { "Holdfast-Export-Key": Array.from(new TextEncoder().encode(key), (byte) => String.fromCharCode(byte)).join("") };
}

// Ids of flows inside a run have slashes, and the server wants them as they are.
function path(id) {
  return id.split("/").map(encodeURIComponent).join("/");
}

function run(id) {
  return `/runs/${path(id)}`;
}

function query(params) {
  const given = Object.entries(params).filter(([, value]) => value != null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

// Half of it by chance, so that a hundred browsers do not all come back to a restarted server in the same moment.
function backoff(failures) {
  const most = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** Math.min(failures, 10));
  return most / 2 + (Math.random() * most) / 2;
}

function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

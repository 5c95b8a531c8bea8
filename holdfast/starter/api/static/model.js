// What the page knows of one run: a fold over the events of its stream, like a checkpoint is a fold over transitions.
// Events can come by the thousand; whoever draws is told at most ten times a second.

import { rootOf } from "./words.js";

const TELL_EVERY = 100;
const STATES = { node_completed: "success", node_failed: "failure", node_skipped: "skip" };

export class RunModel {
  constructor() {
    this.last = 0;
    this.resumed = null;
    this.events = [];
    this.checkpoints = [];
    this.nodes = new Map();
    this.open = new Map();
    this.closed = new Set();
    this.partial = new Map();
    this.moved = new Map();
    this.tell = () => {};
    this.timer = null;
  }

  /** Takes one event. The stream delivers each once and in order. */
  take(event) {
    const root = rootOf(event.path);
    this.last = event.id ?? this.last;
    if (event.event === "tokens") {
      this.partial.set(root, event.data.text);
    } else {
      this.#fold(event, root);
    }
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.tell();
    }, TELL_EVERY);
  }

  #fold(event, root) {
    if (event.event === "checkpoint_created") {
      this.checkpoints.push({ id: event.data.checkpoint_id, at: event.at, event: event.data.event, path: event.path });
      return;
    }
    this.events.push(event);
    this.partial.delete(root);
    this.moved.set(root, event.id);
    if (event.event === "approval") this.open.set(event.data.request.id, event.path);
    if (event.event === "input_received") this.#close(event.data.request_id);
    if (event.event === "run_failed" || event.event === "run_cancelled") {
      for (const id of [...this.open.keys()]) this.#close(id);
    }
    if (event.event === "checkpoint_resumed") {
      this.resumed = event.seq;
      for (const id of event.data.skipped_nodes) this.nodes.set(id, { state: "success", kept: true });
    }
    // What is inside a node has no place in the picture, but may say how far it is.
    if (event.path === root) this.#node(event, root);
    else if (event.data.total !== undefined) this.#progress(root, event);
  }

  // Lists of questions lag behind the run; the stream knows first which are closed.
  #close(requestId) {
    this.open.delete(requestId);
    this.closed.add(requestId);
  }

  #node(event, id) {
    const data = event.data;
    if (event.event === "node_started") {
      this.nodes.set(id, { state: "running", started: event.at, input: data.input_data });
    } else if (event.event in STATES) {
      const { output_data: output, error, attempts, reason, cached } = data;
      const said = error ?? (reason ? { message: reason } : undefined);
      const ended = { state: STATES[event.event], ended: event.at, output, error: said, attempts, cached };
      this.nodes.set(id, { ...this.nodes.get(id), ...ended });
    } else {
      this.#progress(id, event);
    }
  }

  #progress(id, { data }) {
    const known = this.nodes.get(id);
    if (!known) return;
    const counted = data.total !== undefined && data.done !== undefined;
    if (counted) this.nodes.set(id, { ...known, note: `${data.done} of ${data.total}` });
    else if (data.loop !== undefined) this.nodes.set(id, { ...known, note: `round ${data.loop}` });
  }

  /** Node states with those that wait for a person, here or in a flow inside. `inside` are ids of nodes. */
  states(inside) {
    const waiting = new Set([...this.open.values()].map(rootOf).concat(inside));
    const found = new Map(this.nodes);
    for (const id of waiting) {
      const known = this.nodes.get(id);
      if (!known || known.state === "running") found.set(id, { ...known, state: "waiting" });
    }
    return found;
  }
}

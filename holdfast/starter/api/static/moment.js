// A moment of a run: a checkpoint that somebody has picked, read once and then kept, because it never changes.

import { useContext, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { Server } from "./server.js";
import { rootOf } from "./words.js";

// Who holds an arrow key down passes by many checkpoints, and wants to see only the last.
const PASSING = 120;
const STATES = { undefined: "pending" };

/** `run@12` as `["run", 12]`, `run` as `["run", null]`. */
export function splitCheckpoint(text) {
  const found = /^(.*)@(\d+)$/s.exec(text);
  return found ? [found[1], Number(found[2])] : [text, null];
}

/** Shows the run at a checkpoint, or with null as it is now. The address says it, so that it can be sent to others. */
export function goTo(runId, seq) {
  location.hash = placeOf(seq === null ? runId : `${runId}@${seq}`);
}

/** The address of a run, or of a moment of it. */
export function placeOf(id) {
  return `#/run/${encodeURIComponent(id).replace("%40", "@")}`;
}

/** To the moment before or after the one of the address: whoever presses keys quickly is ahead of what is drawn. */
export function step(runId, moment, way) {
  const here = Number(/@(\d+)$/.exec(location.hash)?.[1] ?? moment.seq);
  const { numbers } = moment;
  const next = way === "earlier" ? numbers.findLast((seq) => seq < here) : numbers.find((seq) => seq > here);
  // Back leads out of the past, not through every moment that was passed.
  if (next !== undefined) location.replace(placeOf(`${runId}@${next}`));
}

/**
 * The run after event number `seq`, each of which leaves a checkpoint: `{seq, id, at, checkpoint, position, numbers, error}`;
 * null for now. While it is being read (`reading`), `checkpoint` is the one that was shown before.
 */
export function useMoment(runId, seq, events) {
  const { holdfast, failed } = useContext(Server);
  const known = useMemo(() => new Map(), [runId]);
  const [, draw] = useState(0);
  const shown = useRef(null);
  useEffect(() => {
    if (seq === null || known.has(seq)) return;
    let left = false;
    const take = (found) => {
      if (left && found.error) return;
      known.set(seq, found);
      draw((count) => count + 1);
    };
    const read = () =>
      holdfast.checkpoint(runId, `${runId}@${seq}`).then(
        (checkpoint) => take({ checkpoint }),
        (error) => (failed(error), take({ error })),
      );
    const timer = setTimeout(read, shown.current ? PASSING : 0);
    return () => {
      left = true;
      clearTimeout(timer);
      // What could not be read may be there the next time.
      if (known.get(seq)?.error) known.delete(seq);
    };
  }, [runId, seq]);
  const found = known.get(seq);
  if (seq === null) shown.current = null;
  else if (found?.checkpoint) shown.current = found.checkpoint;
  if (seq === null) return null;
  const numbers = events.map((event) => event.seq);
  return {
    seq,
    id: `${runId}@${seq}`,
    at: events.find((event) => event.seq === seq)?.at ?? (found?.checkpoint?.updated_at || null),
    checkpoint: shown.current,
    reading: !found,
    error: found?.error,
    position: numbers.filter((number) => number <= seq).length,
    numbers,
  };
}

/** What a run that was begun from a checkpoint (by its event number `seq`) has kept; its stream has only the names. */
export function useKept(runId, seq) {
  const { holdfast, failed } = useContext(Server);
  const [kept, setKept] = useState(() => new Map());
  useEffect(() => {
    if (seq === null) return;
    holdfast.checkpoint(runId, `${runId}@${seq}`).then((checkpoint) => setKept(statesOf(checkpoint)), failed);
  }, [runId, seq]);
  return kept;
}

/** The states of the nodes in a checkpoint, as the picture and a step's detail want them. */
export function statesOf(checkpoint) {
  const states = new Map();
  for (const [path, record] of Object.entries(checkpoint?.node_states ?? {})) {
    if (rootOf(path) === path) states.set(path, stateOf(record));
  }
  for (const { path } of Object.values(checkpoint?.pending_inputs ?? {})) {
    const known = states.get(rootOf(path));
    if (known?.state !== "success") states.set(rootOf(path), { ...known, state: "waiting" });
  }
  return states;
}

function stateOf(record) {
  const inside = record.internal_state;
  return {
    state: STATES[record.status] ?? record.status,
    input: record.input_data ?? undefined,
    output: record.status === "success" ? record.output_data : undefined,
    error: record.error,
    attempts: record.attempts || undefined,
    started: record.started_at,
    ended: record.completed_at,
    note: noteOf(inside, record.status),
  };
}

function noteOf(inside, status) {
  if (inside.total_iterations !== undefined) {
    const done = Object.keys(inside.completed_iterations ?? {}).length + Object.keys(inside.failed_iterations ?? {}).length;
    return `${status === "success" ? inside.total_iterations : done} of ${inside.total_iterations}`;
  }
  return status === "running" && inside.current_loop !== undefined ? `round ${inside.current_loop}` : undefined;
}

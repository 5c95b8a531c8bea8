// How things are said to people: names, times, states, and what happened in one sentence.

export const RUN_STATES = {
  pending: "waits for a worker",
  running: "running",
  completed: "completed",
  failed: "failed",
  cancelled: "cancelled",
  pending_input: "waits for an answer",
  paused: "paused",
};

export const NODE_STATES = {
  pending: "not yet",
  running: "running",
  success: "done",
  failure: "failed",
  skip: "skipped",
  waiting: "waits for a person",
};

/** `invoice_total` as "Invoice total". */
export function label(name) {
  const words = String(name).replaceAll(/[_-]+/g, " ").trim();
  return words ? words[0].toUpperCase() + words.slice(1) : String(name);
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

export function short(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

export function moment(iso) {
  const at = new Date(iso);
  const today = at.toDateString() === new Date().toDateString();
  const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? clock : `${at.toLocaleDateString([], { dateStyle: "medium" })}, ${clock}`;
}

export function clock(iso) {
  return new Date(iso).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

const UNITS = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
];
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

/** "5 minutes ago", "in 2 days". */
export function relative(iso) {
  const seconds = (new Date(iso) - Date.now()) / 1000;
  const [unit, length] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  if (unit === "second") return seconds > 0 ? "in a moment" : "just now";
  return RELATIVE.format(Math.round(seconds / length), unit);
}

export function duration(from, to) {
  const seconds = (new Date(to ?? Date.now()) - new Date(from)) / 1000;
  if (seconds < 60) return `${Math.max(0, seconds).toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

const EFFECTS = {
  wait: "after that it stays open",
  default: "after that a default answer is taken",
  fail: "after that the step fails",
  escalate: "after that somebody else is asked",
};

export function deadlineEffect(effect) {
  return EFFECTS[effect] ?? "";
}

/** What a person said, in a few words: "approved", "rejected: too dear", "chose blue". */
export function answerWords(answer) {
  const parts = [];
  if (answer.is_approved != null) parts.push(answer.is_approved ? "approved" : "rejected");
  if (answer.choice != null) parts.push(`chose “${answer.choice}”`);
  const changed = Object.entries(answer.data ?? {}).map(([name, value]) => `${label(name)} = ${plain(value)}`);
  if (changed.length) parts.push(changed.join(", "));
  if (answer.feedback) parts.push(`“${answer.feedback}”`);
  return parts.join(", ") || "no words";
}

export function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// `event.name` is the path with the step's name in place of its id.
const SENTENCES = {
  run_started: () => "The run started",
  run_completed: () => "The run is completed",
  run_failed: (event) => `The run failed: ${event.data.error?.message ?? ""}`,
  run_cancelled: () => "The run was cancelled",
  run_paused: (event) => `Paused${by(event.data.by)}`,
  run_continued: (event) => `Continued${by(event.data.by)}`,
  checkpoint_resumed: (event) => `Goes on from ${event.data.checkpoint_id}; ${event.data.skipped_nodes.length} steps were done`,
  node_started: (event) => `${event.name} started`,
  node_completed: (event) => `${event.name} is done${event.data.attempts > 1 ? ` after ${event.data.attempts} attempts` : ""}`,
  node_failed: (event) => `${event.name} failed: ${event.data.error?.message ?? ""}`,
  node_skipped: (event) => `${event.name} is skipped: ${event.data.reason}`,
  approval: (event) => `${event.name} asks${event.data.request.to ? ` ${event.data.request.to}` : ""}: “${event.data.prompt}”`,
  input_received: (event) => `${event.name}: ${answerWords(event.data.answer)}${by(event.data.answer.by)}`,
  input_reminded: (event) => `${event.name}: ${event.data.overdue ? "the deadline has passed" : "a reminder"}`,
};

function by(name) {
  return name ? ` (by ${name})` : "";
}

/** An event as a sentence. `names`: what the steps are called, by id. */
export function sentence(event, names = new Map()) {
  const root = rootOf(event.path);
  const named = { ...event, name: (names.get(root) ?? root) + event.path.slice(root.length) };
  const known = SENTENCES[event.event];
  if (known) return known(named);
  const said = position(event.data);
  return `${named.name}: ${label(event.event).toLowerCase()}${said ? ` (${said})` : ""}`;
}

/** Where inside a step: "round 2 of 15, search", "3 of 10". */
function position(data) {
  const parts = [];
  if (data.loop !== undefined) parts.push(`round ${data.loop}${data.max_loops ? ` of ${data.max_loops}` : ""}`);
  if (data.done !== undefined && data.total !== undefined) parts.push(`${data.done} of ${data.total}`);
  for (const name of ["tool", "state", "task", "agent"]) if (typeof data[name] === "string") parts.push(data[name]);
  if (data.error?.message) parts.push(data.error.message);
  return parts.join(", ");
}

/** The node of the flow that a path is in: `research` of `research/loop[3]/search[0]`. */
export function rootOf(path) {
  return path.split("~")[0].split("/")[0].split("[")[0];
}

/** A key for an Idempotency-Key header. `crypto.randomUUID` is missing on plain HTTP. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

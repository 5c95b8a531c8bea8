// Values that are changed on the way into a new run. A change is `node:field` and a value, as the server wants it; what
// it was before goes along, for people: `{address, before, after}`.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { WHO } from "./data.js";
import { isObject, plain, short } from "./words.js";

const HIDDEN = "[redacted]";
const DEEPEST = 4;
const MOST_PARTS = 200;
const LONG = 600;
const LONGEST = 20_000;

/** The input of a run. There are no parts of it to choose from: the server takes it whole. */
export function inputPlace(value) {
  return { keys: ["input"], title: "all of it", value, isInput: true };
}

/** What can be changed in a node at a checkpoint: groups of places, each `{keys, title, value}`. */
export function placesIn(checkpoint, path, isRoot = true) {
  const record = checkpoint.node_states[path];
  const groups = isRoot ? { output: outputPlaces(record) } : {};
  const finished = checkpoint.completed_node_ids.includes(path) || record?.status === "success";
  if (!record || finished) return groups;
  const inside = record.internal_state;
  if (Array.isArray(inside.prompt_messages)) groups.messages = inside.prompt_messages.map(messagePlace);
  if (isObject(inside.context)) groups.context = partsOf(["context"], inside.context);
  if (inside.completed_iterations) groups.items = itemPlaces(inside);
  return groups;
}

function outputPlaces(record) {
  if (record?.status !== "success") return [{ keys: ["output"], title: "all of it", value: undefined }];
  return partsOf(["output"], record.output_data);
}

function messagePlace(message, index) {
  const who = `${index + 1}. ${WHO[message.role] ?? message.role}`;
  // What is no plain text, a picture or a call of a tool, is changed with all that belongs to it.
  if (typeof message.content !== "string") return { keys: ["messages", index], title: who, value: message };
  const title = `${who} “${short(message.content, 40)}”`;
  return { keys: ["messages", index, "content"], title, value: message.content };
}

function itemPlaces({ completed_iterations: done, failed_iterations: failed = {} }) {
  const numbers = Object.keys({ ...done, ...failed }).sort((one, other) => one - other);
  return numbers.map((number) => ({
    keys: ["iterations", Number(number)],
    title: `item ${Number(number) + 1}${number in failed ? " (failed)" : ""}`,
    value: done[number],
  }));
}

/** The whole of a value and all that is inside it, as far as people want to choose from a list. */
function partsOf(keys, value) {
  const found = [{ keys, title: "all of it", value }];
  const walk = (way, inner) => {
    if (way.length > DEEPEST || typeof inner !== "object" || inner === null || isMarked(inner)) return;
    const entries = Array.isArray(inner) ? inner.map((item, index) => [index, item]) : Object.entries(inner);
    for (const [key, item] of entries) {
      if (found.length >= MOST_PARTS) return;
      found.push({ keys: [...way, key], title: addressOf([...way, key].slice(keys.length)), value: item });
      walk([...way, key], item);
    }
  };
  walk(keys, value);
  return found;
}

/** `["output", "items", 3, "a b"]` as `output.items[3]["a b"]`. */
export function addressOf(keys) {
  const name = (key) => {
    if (typeof key === "number") return `[${key}]`;
    return /^[^.[\]"\s]+$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
  };
  return keys.map(name).join("").replace(/^\./, "");
}

// What JSON has no form for travels as an object with a mark: {"__datetime__": "…"}.
function isMarked(value) {
  return isObject(value) && Object.keys(value).some((key) => key.startsWith("__"));
}

/** Whether the value, or anything inside it, is so. */
function some(value, test) {
  if (test(value)) return true;
  return typeof value === "object" && value !== null && Object.values(value).some((item) => some(item, test));
}

/** Why a value cannot be changed as a whole; null when it can. */
function obstacle(value) {
  if (value === HIDDEN) return null;
  if (some(value, (item) => item === HIDDEN)) {
    return `A part of it is hidden here (${HIDDEN}), so it cannot be changed as a whole. Choose one of its other parts.`;
  }
  if (some(value, isMarked)) {
    return "It has something in it that cannot be written as text, like a date or a file. Choose one of its other parts.";
  }
  return null;
}

/** A form for one of `places`, of the node at `path` or of the run itself (""); gives a change to `onAdd`. */
export function EditForm({ path, places, start = 0, onAdd, onClose }) {
  const [index, setIndex] = useState(start);
  const place = places[index];
  // Who comes back to a change goes on with what they wrote.
  const [kind, setKind] = useState(() => kindOf(place.draft ?? place.value));
  const [text, setText] = useState(() => textOf(place.draft ?? place.value));
  const form = useRef(null);
  useEffect(() => form.current.querySelector("select, textarea").focus(), []);
  const choose = (event) => {
    const next = Number(event.target.value);
    setIndex(next);
    setKind(kindOf(places[next].value));
    setText(textOf(places[next].value));
  };
  const blocked = place.isInput ? null : obstacle(place.value);
  const read = reading(text, kind, place);
  const problem = blocked ?? read.problem;
  const field = addressOf(place.keys);
  const id = `edit-${path}`;
  const add = (event) => {
    event.preventDefault();
    if (problem || read.same) return;
    onAdd({ address: path ? `${path}:${field}` : field, before: place.value, after: read.value });
  };
  return html`
    <form class="edit" ref=${form} onSubmit=${add} aria-label=${path ? `Change a value of ${path}` : `Change the ${field}`}>
      ${places.length > 1 &&
      html`
        <div class="field">
          <label for="${id}-place">What</label>
          <select id="${id}-place" value=${String(index)} onChange=${choose}>
            ${places.map((entry, number) => html`<option key=${number} value=${String(number)}>${entry.title}</option>`)}
          </select>
        </div>
      `}
      ${!blocked &&
      html`
        <div class="field">
          <label for="${id}-kind">Written as</label>
          <select id="${id}-kind" value=${kind} onChange=${(event) => setKind(event.target.value)}>
            <option value="text">text</option>
            <option value="json">data (JSON)</option>
          </select>
        </div>
        <div class="field">
          <label for=${id}>New value</label>
          <textarea
            id=${id}
            class=${kind === "json" ? "code" : ""}
            rows="6"
            spellcheck=${kind === "text"}
            aria-invalid=${Boolean(problem)}
            aria-describedby="${id}-said"
            value=${text}
            onInput=${(event) => setText(event.target.value)}
          />
        </div>
      `}
      <p id="${id}-said" role="status" class=${problem ? "problem" : "quiet"}>
        ${problem ?? (read.same ? "It is as it was." : hint(place.value, kind))}
      </p>
      <div class="buttons">
        <button type="submit" class="yes" aria-disabled=${Boolean(problem) || read.same}>Take this change</button>
        <button type="button" onClick=${onClose}>Leave it</button>
      </div>
    </form>
  `;
}

function kindOf(value) {
  return value === undefined || typeof value === "string" ? "text" : "json";
}

function textOf(value) {
  if (value === undefined || value === HIDDEN) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function hint(before, kind) {
  if (before === HIDDEN) return "It is hidden; what you write takes its place.";
  return kind === "json" ? "Valid." : "Taken as it is written.";
}

/** What somebody has written: `{value, same}` or `{problem}`. */
function reading(text, kind, { value: before, isInput }) {
  let value = text;
  if (kind === "json") {
    try {
      value = JSON.parse(text);
    } catch (error) {
      return { problem: text.trim() ? `Not valid JSON yet: ${error.message}` : "Write a value." };
    }
  }
  if (JSON.stringify(value).includes(HIDDEN)) {
    return { problem: `${HIDDEN} is only the mark of something hidden: write ${isInput ? "a value in its place" : "another value"}.` };
  }
  if (isInput && value === null && before !== null) {
    return { problem: "null would be the input it had: write another value." };
  }
  return { value, same: JSON.stringify(value) === JSON.stringify(before) };
}

/** The changes that wait to be taken along, each of which can be taken back. */
export function Changes({ changes, onRemove }) {
  if (!changes.length) return null;
  return html`
    <section class="part" aria-labelledby="changes">
      <h3 id="changes">Changes on the way</h3>
      <p class="quiet">Nothing is changed in this run. They go into the new run that you start from here.</p>
      <ul class="changes">
        ${changes.map(
          (change) => html`
            <li key=${change.address}>
              <${BeforeAfter} change=${change} />
              <button onClick=${() => onRemove(change.address)}>
                Remove<span class="hidden"> the change of ${change.address}</span>
              </button>
            </li>
          `,
        )}
      </ul>
    </section>
  `;
}

export function BeforeAfter({ change }) {
  return html`
    <div class="change">
      <span class="id">${change.address}</span>
      <div class="sides">
        <${Side} word="before" value=${change.before} />
        <${Side} word="after" value=${change.after} />
      </div>
    </div>
  `;
}

/** One side of a difference, under its word. */
export function Side({ word, value }) {
  return html`
    <div class="change-side ${word}">
      <span class="quiet">${word}</span>
      ${value === undefined || value === null ? html`<p class="quiet">nothing</p>` : html`<${Shown} value=${value} />`}
    </div>
  `;
}

function Shown({ value }) {
  const text = typeof value === "object" ? JSON.stringify(value, null, 2) : plain(value);
  // What scrolls must be reachable for the keyboard.
  if (text.length > LONG) return html`<p class="value long" tabindex="0">${short(text, LONGEST)}</p>`;
  return text === "" ? html`<p class="quiet">an empty text</p>` : html`<p class="value">${text}</p>`;
}

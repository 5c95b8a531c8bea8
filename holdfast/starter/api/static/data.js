// Data as people can read it: tables instead of JSON, and a conversation as one. Everything becomes text nodes; nothing
// that comes from a run is ever markup, a link or a style.

import { html } from "./vendor/htm-preact.js";
import { isObject, label, moment, relative, short } from "./words.js";

const MOST_ROWS = 25;
const MOST_INNER = 5;
const LONG = 600;
const LONGEST = 20_000;
const MOST_COLUMNS = 5;
const DEEPEST = 2;

export function When({ at }) {
  return html`<time datetime=${at} title=${new Date(at).toLocaleString()}>${relative(at)} (${moment(at)})</time>`;
}

/** A badge: a word and a colour, never a colour alone. */
export function Badge({ state, words }) {
  return html`<span class="badge ${state}">${words[state] ?? state}</span>`;
}

/** A value for people, and all of it as JSON for those who want that. */
export function Data({ value, what = "data" }) {
  if (value === undefined || value === null) return html`<p class="quiet">nothing</p>`;
  const simple = typeof value !== "object";
  return html`
    <div class="data">
      <${Readable} value=${value} depth=${0} />
      ${!simple && html`<${AllOfIt} value=${value} what=${what} />`}
    </div>
  `;
}

function AllOfIt({ value, what }) {
  return html`
    <details>
      <summary>Show all <span class="hidden">of ${what}</span></summary>
      <pre tabindex="0">${JSON.stringify(value, null, 2)}</pre>
    </details>
  `;
}

function Readable({ value, depth }) {
  if (isOutcome(value)) return html`<${Readable} value=${value.output ?? value.error?.message} depth=${depth} />`;
  if (isGrid(value)) return html`<${Grid} rows=${value} />`;
  if (Array.isArray(value)) return html`<${List} items=${value} depth=${depth} />`;
  if (isObject(value) && isMarked(value)) return html`<span class="value">${unmarked(value)}</span>`;
  if (isObject(value)) return html`<${Table} data=${value} depth=${depth} />`;
  const text = scalar(value);
  // What scrolls must be reachable for the keyboard.
  return text.length > LONG ? html`<div class="value long" tabindex="0">${text}</div>` : html`<span class="value">${text}</span>`;
}

// What another step gave. People want what it said; how it came to that is behind "show all".
function isOutcome(value) {
  const known = ["status", "input", "output", "error"];
  return isObject(value) && "status" in value && "output" in value && Object.keys(value).every((name) => known.includes(name));
}

/** Objects of the same few plain fields: a table with a head. */
function isGrid(value) {
  if (!Array.isArray(value) || !value.length || !value.every(isObject)) return false;
  const names = Object.keys(value[0]);
  const isPlain = (cell) => cell === null || typeof cell !== "object";
  const same = (row) => Object.keys(row).join("\n") === names.join("\n") && Object.values(row).every(isPlain);
  return names.length > 0 && names.length <= MOST_COLUMNS && value.every(same);
}

function Grid({ rows }) {
  const names = Object.keys(rows[0]);
  return html`
    <table class="grid">
      <thead>
        <tr>${names.map((name) => html`<th key=${name} scope="col" title=${name}>${label(name)}</th>`)}</tr>
      </thead>
      <tbody>
        ${rows.slice(0, MOST_ROWS).map(
          (row, index) => html`
            <tr key=${index}>
              ${names.map((name) => html`<td key=${name}><span class="value">${scalar(row[name])}</span></td>`)}
            </tr>
          `,
        )}
      </tbody>
    </table>
    <${More} count=${rows.length} />
  `;
}

// What JSON has no form for travels as an object with a mark: {"__datetime__": "…"}.
function isMarked(value) {
  const names = Object.keys(value);
  return names.length === 1 && /^__\w+__$/.test(names[0]) && typeof Object.values(value)[0] === "string";
}

function unmarked(value) {
  const [[name, inner]] = Object.entries(value);
  return name === "__bytes__" ? `${Math.floor((inner.length * 3) / 4)} bytes` : inner;
}

function Table({ data, depth }) {
  const entries = Object.entries(data);
  if (!entries.length) return html`<span class="quiet">empty</span>`;
  if (depth > DEEPEST) return html`<span class="quiet">${counted(entries.length, "field")}</span>`;
  return html`
    <table>
      <tbody>
        ${entries.slice(0, MOST_ROWS).map(
          ([name, value]) => html`
            <tr key=${name}>
              <th scope="row" title=${name}>${label(name)}</th>
              <td><${Readable} value=${value} depth=${depth + 1} /></td>
            </tr>
          `,
        )}
      </tbody>
    </table>
    <${More} count=${entries.length} />
  `;
}

function List({ items, depth }) {
  if (!items.length) return html`<span class="quiet">none</span>`;
  if (depth > DEEPEST) return html`<span class="quiet">${counted(items.length, "entry", "entries")}</span>`;
  const most = depth || items.some((item) => typeof item === "object") ? MOST_INNER : MOST_ROWS;
  return html`
    <ul>
      ${items.slice(0, most).map((item, index) => html`<li key=${index}><${Readable} value=${item} depth=${depth + 1} /></li>`)}
    </ul>
    <${More} count=${items.length} most=${most} />
  `;
}

function More({ count, most = MOST_ROWS }) {
  return count > most && html`<p class="quiet">and ${count - most} more</p>`;
}

function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

function scalar(value) {
  if (value === true) return "yes";
  if (value === false) return "no";
  if (value === null || value === undefined) return "–";
  return short(String(value), LONGEST);
}

export const WHO = { system: "Instructions", user: "Request", assistant: "Agent", tool: "Tool" };

/** What an agent and its model have said, with the tools it used. */
export function Conversation({ messages, partial }) {
  return html`
    <ol class="chat" aria-label="Conversation">
      ${messages.map((message, index) => html`<${Turn} key=${index} message=${message} />`)}
      ${partial && html`<li key="partial" class="turn assistant"><b>Agent is writing</b><p class="value">${partial}</p></li>`}
    </ol>
  `;
}

function Turn({ message }) {
  const who = WHO[message.role] ?? message.role;
  return html`
    <li class="turn ${message.role}">
      <b>${who}${message.name ? ` ${message.name}` : ""}</b>
      ${message.reasoning && html`<details><summary>Thinking</summary><p class="value">${message.reasoning}</p></details>`}
      ${words(message.content) && html`<p class="value">${words(message.content)}</p>`}
      ${(message.tool_calls ?? []).map(
        (call) => html`
          <div key=${call.id} class="call">
            <span>uses <b>${call.name}</b></span>
            <${Readable} value=${call.arguments ?? {}} depth=${1} />
          </div>
        `,
      )}
    </li>
  `;
}

function words(content) {
  if (!Array.isArray(content)) return content ?? "";
  return content.map((part) => (part.type === "text" ? part.text : `[${part.type === "file" ? "file" : "image"}]`)).join("\n");
}

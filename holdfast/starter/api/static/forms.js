// Fields of forms: made from a JSON schema, or from the value that may be edited. Every field is text until it is read,
// so that what somebody types is never changed under their hands; `read` says what it means, or what is wrong with it.

import { html } from "./vendor/htm-preact.js";
import { isObject, label } from "./words.js";

const LONG_TEXT = 80;
const SIMPLE = new Set(["string", "number", "integer", "boolean"]);

/** The fields of an object's JSON schema; one field for the whole, in JSON, where it is none that we can draw. */
export function fieldsOfSchema(schema) {
  const properties = schema?.properties;
  if (!isObject(properties) || !Object.keys(properties).length) {
    return [{ name: null, label: "Answer (JSON)", type: "json", text: "{}", required: true }];
  }
  const required = new Set(schema.required ?? []);
  return Object.entries(properties).map(([name, property]) => fieldOfProperty(name, property, required.has(name)));
}

function fieldOfProperty(name, property, required) {
  const found = optional(isObject(property) ? property : {});
  const options = Array.isArray(found.enum) ? found.enum : null;
  const type = options ? "enum" : SIMPLE.has(found.type) ? found.type : "json";
  return {
    name,
    type,
    options,
    required: required && type !== "boolean",
    label: found.title ?? label(name),
    hint: found.description ?? null,
    format: found.format,
    min: found.minimum,
    max: found.maximum,
    long: type === "string" && (found.maxLength ?? 0) > LONG_TEXT,
    text: textOf(type, found.default, options),
  };
}

/** `X or null`, as pydantic writes an optional field, is an X that may be left out. */
function optional(property) {
  const kinds = (property.anyOf ?? []).filter((kind) => kind.type !== "null");
  if (kinds.length === 1) return { ...property, ...kinds[0] };
  const types = Array.isArray(property.type) ? property.type.filter((type) => type !== "null") : [];
  return types.length === 1 ? { ...property, type: types[0] } : property;
}

/** The fields of `data` that may be edited, with the values they have. */
export function fieldsOfData(data, editable) {
  const known = isObject(data) ? data : {};
  return editable.map((name) => {
    const type = typeOf(known[name]);
    const text = textOf(type, known[name]);
    // A number that is emptied is a slip; a text may well become empty.
    return { name, type, label: label(name), text, required: type === "number", long: type === "string" && isLong(text) };
  });
}

function typeOf(value) {
  if (value === undefined || value === null) return "string";
  return SIMPLE.has(typeof value) ? typeof value : "json";
}

function isLong(text) {
  return text.length > LONG_TEXT || text.includes("\n");
}

function textOf(type, value, options) {
  if (type === "boolean") return value === true;
  if (value === undefined || value === null) return "";
  if (type === "enum") return String(options.indexOf(value));
  return type === "json" ? JSON.stringify(value, null, 2) : String(value);
}

/** What has been entered, as data; Error when a text is none of its type. Fields left empty are left out. */
export function read(fields, texts) {
  const data = {};
  for (const field of fields) {
    const text = texts[field.name];
    if (text === "") continue;
    const value = valueOf(field, text);
    if (field.name === null) return value;
    data[field.name] = value;
  }
  return data;
}

/** Only what differs from what it was. */
export function changes(fields, texts) {
  const touched = fields.filter((field) => texts[field.name] !== field.text);
  const data = read(touched, texts);
  // Emptied is an edit as well, not a field left out.
  for (const field of touched) if (!(field.name in data)) data[field.name] = field.type === "string" ? "" : null;
  return data;
}

function valueOf(field, text) {
  if (field.type === "boolean") return text;
  if (field.type === "enum") return field.options[Number(text)];
  if (field.type === "json") return parsed(field, text);
  if (field.type === "string") return text;
  const number = Number(text);
  if (!Number.isFinite(number)) throw new Error(`${field.label}: ${text} is not a number`);
  return number;
}

function parsed(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${field.label} is not valid JSON: ${error.message}`);
  }
}

export function textsOf(fields) {
  return Object.fromEntries(fields.map((field) => [field.name, field.text]));
}

/** A labelled input. `id` is unique on the page. */
export function Field({ field, id, text, onText }) {
  const hint = field.hint ? `${id}-hint` : undefined;
  const notes = [field.required && "needed", field.type === "json" && field.name !== null && "JSON"].filter(Boolean).join(", ");
  const mark = notes && html` <span class="quiet">(${notes})</span>`;
  const input = html`<${Input} ...${{ field, id, text, onText, hint }} />`;
  return html`
    <div class="field ${field.type}">
      ${field.type === "boolean" && input}
      <label for=${id}>${field.label}${mark}</label>
      ${field.type !== "boolean" && input}
      ${field.hint && html`<p class="quiet" id=${hint}>${field.hint}</p>`}
    </div>
  `;
}

function Input({ field, id, text, onText, hint }) {
  const common = { id, required: field.required, "aria-describedby": hint };
  const onInput = (event) => onText(event.target.value);
  if (field.type === "boolean") {
    return html`<input type="checkbox" ...${common} checked=${text} onChange=${(event) => onText(event.target.checked)} />`;
  }
  if (field.type === "enum") return html`<${Select} ...${{ field, text, onText, common }} />`;
  if (field.type === "json") {
    return html`<textarea ...${common} rows="5" class="code" spellcheck=${false} value=${text} onInput=${onInput} />`;
  }
  if (field.long) return html`<textarea ...${common} rows="4" value=${text} onInput=${onInput} />`;
  const number = field.type === "number" || field.type === "integer";
  const step = field.type === "integer" ? 1 : "any";
  const limits = number ? { step, min: field.min, max: field.max } : {};
  const type = number ? "number" : textType(field.format);
  return html`<input type=${type} ...${common} ...${limits} value=${text} onInput=${onInput} />`;
}

function Select({ field, text, onText, common }) {
  return html`
    <select ...${common} value=${text} onChange=${(event) => onText(event.target.value)}>
      <option value="">–</option>
      ${field.options.map((option, index) => html`<option key=${index} value=${String(index)}>${String(option)}</option>`)}
    </select>
  `;
}

function textType(format) {
  return { date: "date", email: "email", uri: "url", time: "time" }[format] ?? "text";
}

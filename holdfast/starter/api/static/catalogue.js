// The flows that the server knows, to choose one of.

import { html, useContext, useEffect, useRef } from "./vendor/htm-preact.js";
import { Server, useRefreshed } from "./server.js";
import { label } from "./words.js";

/** `title` names the field; `isFirst`: it has the focus. */
export function FlowChoice({ id, title, chosen, isFirst, onChosen }) {
  const { holdfast } = useContext(Server);
  const flows = useRefreshed(() => holdfast.flows(), 60_000);
  const field = useRef(null);
  useEffect(() => isFirst && field.current.focus(), []);
  const flow = flows.value?.find(({ name }) => name === chosen);
  return html`
    <div class="field">
      <label for=${id}>${title}</label>
      <select id=${id} required ref=${field} value=${chosen} onChange=${(event) => onChosen(event.target.value)}>
        <option value="">choose one</option>
        ${(flows.value ?? []).map(({ name, title }) => html`<option key=${name} value=${name}>${title ?? label(name)}</option>`)}
      </select>
      ${flow?.description && html`<p class="quiet">${flow.description}</p>`}
      ${flows.value?.length === 0 && html`<p class="quiet">The catalogue is empty: start the server with --flows FOLDER.</p>`}
    </div>
  `;
}

// A run from a file that was downloaded, here or elsewhere.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { FlowChoice } from "./catalogue.js";
import { Server, whyNot } from "./server.js";

/** What a file lacks, by the error that says so. */
const LACKS = {
  "export/locked": "key",
  "export/wrong-key": "key",
  "export/bad-key": "key",
  "run/no-definition": "flow",
};

export function Import() {
  const server = useContext(Server);
  const [said, setSaid] = useState(null);
  // A file that is not whole by itself, and what it lacks.
  const [open, setOpen] = useState(null);
  const input = useRef(null);
  const take = async (file, { key, flow } = {}) => {
    setSaid({ text: `Importing ${file.name}…` });
    try {
      const { holdfast } = server;
      const { run_id: runId, notes = [] } = await (flow ? holdfast.importCheckpoint(file, { flow }) : holdfast.importRun(file, { key }));
      setOpen(null);
      if (notes.length) setSaid({ notes, runId });
      else location.hash = `#/run/${encodeURIComponent(runId)}`;
    } catch (error) {
      server.failed(error);
      const lacks = flow ? "flow" : LACKS[error.code];
      setOpen(lacks ? { file, lacks } : null);
      const isFirst = lacks && !key && !flow;
      setSaid(isFirst ? null : { text: `${file.name} was not imported: ${whyNot(error)}`, wrong: true });
    }
  };
  const choose = () => {
    const [file] = input.current.files;
    if (file) take(file);
    // So that the same file can be chosen again.
    input.current.value = "";
  };
  const form = open && {
    key: `${open.lacks} ${open.file.name}`,
    name: open.file.name,
    onGiven: (given) => take(open.file, given),
    onLeave: () => (setOpen(null), setSaid(null)),
  };
  return html`
    <div class="import">
      <button aria-describedby="import-means" onClick=${() => input.current.click()}>Import…</button>
      <input ref=${input} type="file" accept=".json,.yaml,.yml" hidden aria-label="A downloaded checkpoint" onChange=${choose} />
      <span class="quiet" id="import-means">A downloaded checkpoint becomes a run again: paused, until you let it go on.</span>
    </div>
    ${form && (open.lacks === "key" ? html`<${KeyForm} ...${form} />` : html`<${FlowForm} ...${form} />`)}
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

function KeyForm({ name, onGiven, onLeave }) {
  const [text, setText] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  return html`
    <form class="card" onSubmit=${(event) => (event.preventDefault(), onGiven({ key: text.trim() }))}>
      <div class="field">
        <label for="import-key">The key of ${name}</label>
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

/** For a checkpoint alone, as Dynamiq writes it and `holdfast checkpoint` shows it. */
function FlowForm({ name, onGiven, onLeave }) {
  const [chosen, setChosen] = useState("");
  return html`
    <form class="card" onSubmit=${(event) => (event.preventDefault(), onGiven({ flow: chosen }))}>
      <p class="quiet">${name} is a checkpoint alone, without the flow that it belongs to.</p>
      <${FlowChoice} id="import-flow" title=${`The flow of ${name}`} isFirst chosen=${chosen} onChosen=${setChosen} />
      <div class="buttons">
        <button type="submit" class="yes">Import it</button>
        <button type="button" onClick=${onLeave}>Leave it</button>
      </div>
    </form>
  `;
}

// A moment of a run as a file, to be kept or taken elsewhere.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Server, whyNot } from "./server.js";

export function Download({ run, moment }) {
  const [asked, setAsked] = useState(false);
  const [saved, setSaved] = useState(null);
  const begin = () => (setSaved(null), setAsked(true));
  const end = (name) => (setSaved(name ?? null), setAsked(false));
  return html`
    <button onClick=${begin}>Download…</button>
    ${asked && html`<${DownloadDialog} ...${{ run, moment }} onEnd=${end} />`}
    <p role="status" class=${saved ? "notice wide" : "hidden"}>${saved && `Saved as ${saved}.`}</p>
  `;
}

function DownloadDialog({ run, moment, onEnd }) {
  const server = useContext(Server);
  const [key, setKey] = useState("");
  const [madeFor, setMadeFor] = useState("");
  const [files, setFiles] = useState(true);
  const [said, setSaid] = useState(null);
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const save = async (event) => {
    event.preventDefault();
    setSaid({ text: "Preparing the file…" });
    const wanted = { checkpointId: moment?.id, key: key.trim() || undefined, madeFor: madeFor.trim() || undefined, files };
    try {
      const { name, blob } = await server.holdfast.exportRun(run.run_id, wanted);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      dialog.current.close();
      onEnd(name);
    } catch (error) {
      server.failed(error);
      setSaid({ text: `Not saved: ${whyNot(error)}`, wrong: true });
    }
  };
  const typed = (set) => (event) => set(event.target.value);
  return html`
    <dialog ref=${dialog} onCancel=${() => onEnd()} aria-labelledby="download-title">
      <h2 id="download-title">Download ${moment ? `checkpoint @${moment.seq}` : "the run as it is now"}</h2>
      <p>Everything is in the file, also what is hidden on this page. Without a key, whoever has it can read it.</p>
      <form onSubmit=${save}>
        <div class="field">
          <label for="download-key">Key <span class="quiet">(a passphrase; empty: not encrypted)</span></label>
          <input id="download-key" type="password" autocomplete="new-password" value=${key} onInput=${typed(setKey)} />
        </div>
        <div class="field">
          <label for="download-for">For the namespace <span class="quiet">(empty: the one it is in)</span></label>
          <input id="download-for" autocomplete="off" spellcheck=${false} value=${madeFor} onInput=${typed(setMadeFor)} />
        </div>
        <div class="field boolean">
          <input id="download-files" type="checkbox" checked=${files} onChange=${(event) => setFiles(event.target.checked)} />
          <label for="download-files">With the files of its agents</label>
        </div>
        <p role=${said?.wrong ? "alert" : "status"} class=${said?.wrong ? "problem" : said ? "notice" : "hidden"}>${said?.text}</p>
        <div class="buttons">
          <button type="submit" class="yes">Save the file</button>
          <button type="button" onClick=${() => onEnd()}>Cancel</button>
        </div>
      </form>
    </dialog>
  `;
}

// The question before a new run is started from a checkpoint: what is kept, what goes on, what is done again.

import { html, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { BeforeAfter, EditForm, inputPlace } from "./editing.js";
import { Server } from "./server.js";
import { newKey } from "./words.js";

const KINDS = {
  resume: {
    title: () => "Resume this run?",
    does: "A new run takes the place of this one: what is done is kept, and the rest is done. A run can be resumed once.",
  },
  fork: {
    title: () => "Fork this run?",
    does: "A second run begins from here and goes its own way. This one stays as it is.",
  },
  rerun: {
    title: (name) => `Do “${name}” again?`,
    does: "A second run does this step and what follows from it again. This one stays as it is.",
  },
  failed: {
    title: (name) => `Do the failed items of “${name}” again?`,
    does: "A second run tries only the items again that failed. This one stays as it is.",
  },
};

/** `wanted`: `{kind, checkpointId, where, node, changes}`. Starting leads to the new run. */
export function PlanDialog({ runId, flow, wanted, onClose }) {
  const server = useContext(Server);
  const [kind, setKind] = useState(wanted.kind);
  const [plan, setPlan] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  // Another input, as a change; and whether somebody is writing one.
  const [input, setInput] = useState(null);
  const [writing, setWriting] = useState(false);
  // A second click, or one after a lost reply, finds the run that the first one started.
  const key = useRef(newKey());
  const dialog = useRef(null);
  const names = new Map(flow.nodes.map((node) => [node.id, node.name ?? node.id]));
  const changes = bodyOf(wanted, kind, input);
  const barred = !plan || writing || Boolean(problem?.closed);
  const { title, does } = KINDS[kind];
  useEffect(() => dialog.current.showModal(), []);
  useEffect(() => {
    let left = false;
    setPlan(null);
    setProblem(null);
    server.holdfast.plan(runId, changes).then(
      (found) => !left && setPlan(found),
      (error) => {
        server.failed(error);
        if (!left) setProblem({ text: error.status === undefined ? "The server could not be reached." : error.message });
      },
    );
    return () => (left = true);
  }, [input]);
  const takeInput = (change) => {
    setInput(change);
    // Another input is another run, also where the reply to the first attempt was lost.
    key.current = newKey();
  };
  const start = async () => {
    if (busy) return;
    setBusy(true);
    setProblem(null);
    try {
      const begin = kind === "resume" ? "resume" : "fork";
      const { run_id: begun } = await server.holdfast[begin](runId, { ...changes, key: key.current });
      location.hash = `#/run/${encodeURIComponent(begun)}`;
    } catch (error) {
      server.failed(error);
      setProblem(refusal(error));
      setBusy(false);
    }
  };
  const leave = () => {
    // Closed before it is gone: so the focus goes back to where it was.
    dialog.current.close();
    onClose();
  };
  const forkInstead = () => {
    setKind("fork");
    setProblem(null);
    key.current = newKey();
  };
  return html`
    <dialog ref=${dialog} class="plan" onCancel=${onClose} aria-labelledby="plan-title">
      <h2 id="plan-title" tabindex="-1" autofocus>${title(names.get(wanted.node))}</h2>
      <p>${does}</p>
      <p class="quiet">From ${wanted.where}.</p>
      ${wanted.changes.length > 0 && html`<${Edited} changes=${wanted.changes} />`}
      <${Input} ...${{ runId, wanted, input, writing }} onWriting=${setWriting} onInput=${takeInput} />
      ${plan && html`<${Plan} plan=${plan} flow=${flow} names=${names} />`}
      ${!plan && !problem && html`<p role="status">Looking what it would do…</p>`}
      <div role="alert" class=${problem ? "problem" : "hidden"}>${problem && html`<${Refused} ...${problem} />`}</div>
      <div class="buttons">
        <button type="button" onClick=${leave}>Cancel</button>
        ${problem?.fork && html`<button key="fork" type="button" onClick=${forkInstead}>Fork instead</button>`}
        <button key="start" type="button" class="yes" disabled=${barred} aria-busy=${busy} onClick=${start}>Start</button>
      </div>
    </dialog>
  `;
}

function bodyOf({ checkpointId, node, changes }, kind, input) {
  return {
    checkpointId,
    input: input?.after,
    edits: changes.length ? Object.fromEntries(changes.map(({ address, after }) => [address, after])) : undefined,
    rerun: kind === "rerun" || kind === "failed" ? [node] : undefined,
    onlyFailed: kind === "failed" || undefined,
  };
}

function refusal(error) {
  if (error.winner) return { closed: true, fork: true, winner: error.winner };
  if (error.code === "run/active") {
    return { closed: true, fork: true, text: "This run has not ended and goes on by itself. You can fork it." };
  }
  const again = "Try again: it is not started twice.";
  if (error.status === undefined) return { text: `The server could not be reached. ${again}` };
  return { text: error.status >= 500 ? `The server could not confirm it. ${again}` : error.message };
}

function Refused({ text, winner }) {
  if (!winner) return text;
  return html`
    This run was resumed already; somebody was first. Look at
    ${" "}<a class="id" href="#/run/${encodeURIComponent(winner)}">${winner}</a>, or fork this one.
  `;
}

function Edited({ changes }) {
  return html`
    <h3>With these changes</h3>
    <ul class="changes">
      ${changes.map((change) => html`<li key=${change.address}><${BeforeAfter} change=${change} /></li>`)}
    </ul>
  `;
}

/** The run's input, which can be another one. What it was is read when somebody wants to change it. */
function Input({ runId, wanted, input, writing, onWriting, onInput }) {
  const server = useContext(Server);
  const [before, setBefore] = useState(null);
  const [said, setSaid] = useState(null);
  const button = useRef(null);
  const write = async () => {
    setSaid({ text: "Reading the input…" });
    try {
      const { original_input: value } = await server.holdfast.checkpoint(runId, wanted.checkpointId);
      setBefore({ value });
      setSaid(null);
      onWriting(true);
    } catch (error) {
      server.failed(error);
      setSaid({ text: `The input cannot be read: ${error.message}`, wrong: true });
    }
  };
  const close = () => {
    onWriting(false);
    setTimeout(() => button.current?.focus());
  };
  const take = (change) => {
    onInput(change);
    close();
  };
  if (writing) {
    const place = { ...inputPlace(before.value), draft: input?.after };
    return html`
      <h3>Another input</h3>
      <p class="quiet">What is kept stays as it is; every other step sees the new input.</p>
      <${EditForm} path="" places=${[place]} onAdd=${take} onClose=${close} />
    `;
  }
  return html`
    ${input &&
    html`
      <h3>With another input</h3>
      <div class="changes"><${BeforeAfter} change=${input} /></div>
    `}
    <div class="buttons">
      <button type="button" ref=${button} onClick=${write}>Change the input…</button>
      ${input && html`<button key="back" type="button" onClick=${() => onInput(null)}>Take the input it had</button>`}
    </div>
    <p role="status" class=${said?.wrong ? "problem" : said ? "quiet" : "hidden"}>${said?.text}</p>
  `;
}

function Plan({ plan, flow, names }) {
  const judged = new Set([...plan.kept, ...plan.forgotten, ...plan.reset]);
  const rest = flow.nodes.map((node) => node.id).filter((id) => !judged.has(id));
  const idle = judged.size === plan.kept.length && !rest.length;
  const groups = [
    ["Kept as it is", "not done again", plan.kept],
    ["Goes on", "where it was, or is tried again", plan.forgotten],
    ["Runs again", "from its beginning; what it does outside, like sending or paying, happens again", plan.reset],
    ["Comes after that", "not begun yet", rest],
  ];
  return html`
    <dl class="plan-groups">
      ${groups
        .filter(([, , ids]) => ids.length)
        .map(
          ([word, means, ids]) => html`
            <div key=${word}>
              <dt>${word} <span class="quiet">(${means})</span></dt>
              <dd>${ids.map((id) => names.get(id) ?? id).join(", ")}</dd>
            </div>
          `,
        )}
    </dl>
    ${idle && html`<p class="notice">Nothing is left to do: the new run only has the same results.</p>`}
    ${plan.warnings.length > 0 &&
    html`
      <div class="notice">
        <b>Please note</b>
        <ul>${plan.warnings.map((warning) => html`<li key=${warning}>${warning}</li>`)}</ul>
      </div>
    `}
  `;
}

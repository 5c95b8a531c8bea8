// A question as a card: what is asked, of whom, until when, about what, and the form to answer it with.

import { html, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { isTemporary } from "./client.js";
import { Server } from "./server.js";
import { Data, When } from "./data.js";
import { Field, changes, fieldsOfData, fieldsOfSchema, read, textsOf } from "./forms.js";
import { RUN_STATES, answerWords, deadlineEffect, label, moment, newKey, relative } from "./words.js";

/** `closed`: somebody else's answer, or the end of the run, while this one was being looked at. */
export function Question({ request, closed = null, showRun = true, onTouched = () => {}, onDone = () => {} }) {
  const [result, setResult] = useState(null);
  const data = useData(request);
  const heading = `question-${request.id}`;
  const done = (answer, receipt) => {
    setResult({ answer, receipt });
    onDone(request.id);
  };
  const form = { request, data: data.value, closed, onTouched, onDone: done };
  return html`
    <article class="card question" aria-labelledby=${heading} data-request=${request.id}>
      <h2 id=${heading}>${request.prompt}</h2>
      <${Facts} request=${request} showRun=${showRun} />
      ${data.value != null && html`<${Data} value=${data.value} what="the data" />`}
      ${data.failed && html`<p class="problem">What it is about could not be read: ${data.failed}</p>`}
      ${!result && closed && html`<p class="notice" role="status">${closed}</p>`}
      ${result
        ? html`<${Result} request=${request} ...${result} />`
        : data.ready && html`<${Form} ...${form} />`}
    </article>
  `;
}

/** What the question is about. A list leaves out what is large; then it is in the run's checkpoint. */
function useData(request) {
  const { holdfast } = useContext(Server);
  const omitted = request.data_omitted;
  const [found, setFound] = useState({ ready: !omitted, value: request.data });
  useEffect(() => {
    if (!omitted) return;
    holdfast.checkpoint(request.run_id).then(
      (checkpoint) => setFound({ ready: true, value: checkpoint.pending_inputs[request.id]?.data }),
      (error) => setFound({ ready: true, failed: error.message }),
    );
  }, [request.id]);
  return found;
}

function Facts({ request, showRun }) {
  const flow = request.flow_id ? label(request.flow_id) : "a flow";
  const where = request.path.split("/")[0];
  const run = `#/run/${encodeURIComponent(request.root_run_id)}`;
  return html`
    <dl class="facts">
      ${showRun && html`<div><dt>From</dt><dd><a href=${run}>${flow}</a>, step ${where}</dd></div>`}
      ${!showRun && html`<div><dt>Step</dt><dd>${where}</dd></div>`}
      ${request.to && html`<div><dt>For</dt><dd>${request.to}</dd></div>`}
      <div><dt>Asked</dt><dd><${When} at=${request.created_at} />${request.is_resumed ? ", again" : ""}</dd></div>
      ${request.deadline && html`<${Until} request=${request} />`}
    </dl>
  `;
}

function Until({ request }) {
  const late = request.overdue || new Date(request.deadline) < Date.now();
  return html`
    <div class=${late ? "late" : ""}>
      <dt>${late ? "Was due" : "Until"}</dt>
      <dd><${When} at=${request.deadline} />${late ? "" : `; ${deadlineEffect(request.effect)}`}</dd>
    </div>
  `;
}

/** Sends an answer. The same answer again has the same key, so a second click after a lost reply is not a second answer. */
function useSending(request, onDone) {
  const server = useContext(Server);
  const [sending, setSending] = useState(false);
  const [problem, setProblem] = useState(null);
  const last = useRef({ text: null, key: null });
  const send = async (answer) => {
    const text = JSON.stringify(answer);
    if (last.current.text !== text) last.current = { text, key: newKey() };
    setSending(true);
    setProblem(null);
    try {
      const message = { request_id: request.id, data: answer };
      const receipt = await server.holdfast.sendInput(request.run_id, message, { key: last.current.key });
      onDone(answer, receipt);
    } catch (error) {
      server.failed(error);
      setProblem(refusal(error));
      setSending(false);
    }
  };
  return { sending, problem, setProblem, send };
}

/** A refusal for people. The server says `… already answered by ada at 2026-…`: who and when is what matters. */
function refusal(error) {
  const first = /already answered by (.*) at (\S+)$/.exec(error.detail ?? "");
  if (first) {
    return { closed: true, text: `Already answered by ${first[1]} at ${timeOf(first[2])}. Your answer was not taken.` };
  }
  if (error.code === "answer/ended") return { closed: true, text: "The run has ended and asks nothing any more." };
  const here = "Your answer is still here: try again in a minute.";
  if (error.status === undefined) return { text: `The server could not be reached. ${here}` };
  return { text: isTemporary(error) ? `The server cannot confirm it at the moment. ${here}` : `Not taken: ${error.detail}` };
}

function timeOf(text) {
  return Number.isNaN(Date.parse(text)) ? text : `${moment(text)} (${relative(text)})`;
}

const FORMS = { approval: ApprovalForm, choice: ChoiceForm, text: TextForm, form: SchemaForm };

function Form({ request, data, closed, onTouched, onDone }) {
  const sending = useSending(request, onDone);
  const Kind = FORMS[request.kind] ?? TextForm;
  const { problem } = sending;
  // What was typed stays to be read, also when it can no longer be sent.
  const disabled = sending.sending || Boolean(closed) || Boolean(problem?.closed);
  return html`
    <div onInput=${onTouched} onChange=${onTouched} aria-busy=${sending.sending}>
      <fieldset disabled=${disabled}><${Kind} ...${{ request, data, sending }} /></fieldset>
      <p class=${problem ? "problem" : "hidden"} role="alert">${problem?.text}</p>
    </div>
  `;
}

function ApprovalForm({ request, data, sending }) {
  const fields = useMemo(() => fieldsOfData(data, request.editable), [request.id]);
  const [texts, setTexts] = useState(() => textsOf(fields));
  const [comment, setComment] = useState("");
  const form = useRef(null);
  const box = useRef(null);
  const id = `${request.id}-comment`;
  const answer = (approved) => {
    if (!approved && !comment.trim()) {
      sending.setProblem({ text: "Please say why you reject it." });
      box.current.focus();
      return;
    }
    if (approved && !form.current.reportValidity()) return;
    attempt(sending, () => {
      const answer = { is_approved: approved };
      const edited = approved ? changes(fields, texts) : {};
      if (comment.trim()) answer.feedback = comment.trim();
      if (Object.keys(edited).length) answer.data = edited;
      return answer;
    });
  };
  // Enter in a field must not approve a payment: only the button does.
  return html`
    <form ref=${form} onSubmit=${(event) => event.preventDefault()}>
      ${fields.length > 0 && html`<p class="quiet">You may change this before you approve:</p>`}
      <${Fields} ...${{ request, fields, texts, setTexts }} />
      <div class="field">
        <label for=${id}>Comment <span class="quiet">(needed to reject)</span></label>
        <textarea
          id=${id}
          rows="2"
          ref=${box}
          value=${comment}
          onInput=${(event) => setComment(event.target.value)}
        />
      </div>
      <div class="buttons">
        <button type="button" class="yes" onClick=${() => answer(true)}>Approve</button>
        <button type="button" class="no" onClick=${() => answer(false)}>Reject</button>
      </div>
    </form>
  `;
}

function ChoiceForm({ request, sending }) {
  return html`
    <div class="buttons" role="group" aria-label="Your choice">
      ${request.choices.map((choice) => {
        const choose = () => sending.send({ choice });
        return html`<button key=${choice} type="button" onClick=${choose}>${choice}</button>`;
      })}
    </div>
  `;
}

function TextForm({ request, sending }) {
  const [text, setText] = useState("");
  const id = `${request.id}-text`;
  return html`
    <form onSubmit=${(event) => (event.preventDefault(), sending.send({ feedback: text }))}>
      <div class="field">
        <label for=${id}>Your answer</label>
        <textarea
          id=${id}
          rows="4"
          required
          value=${text}
          onInput=${(event) => setText(event.target.value)}
        />
      </div>
      <div class="buttons"><button type="submit" class="yes">Send</button></div>
    </form>
  `;
}

function SchemaForm({ request, sending }) {
  const fields = useMemo(() => fieldsOfSchema(request.form), [request.id]);
  const [texts, setTexts] = useState(() => textsOf(fields));
  const submit = (event) => {
    event.preventDefault();
    attempt(sending, () => ({ data: read(fields, texts) }));
  };
  return html`
    <form onSubmit=${submit}>
      <${Fields} ...${{ request, fields, texts, setTexts }} />
      <div class="buttons"><button type="submit" class="yes">Send</button></div>
    </form>
  `;
}

function Fields({ request, fields, texts, setTexts }) {
  return fields.map((field) => {
    const onText = (text) => setTexts({ ...texts, [field.name]: text });
    const id = `${request.id}-field-${field.name}`;
    return html`<${Field} key=${field.name} ...${{ field, id, onText }} text=${texts[field.name]} />`;
  });
}

/** Makes the answer and sends it; a text that is no number or no JSON is said, not sent. */
function attempt(sending, make) {
  let answer;
  try {
    answer = make();
  } catch (error) {
    sending.setProblem({ text: error.message });
    return;
  }
  sending.send(answer);
}

/** What became of the answer. Takes the focus, because the button that had it is gone. */
function Result({ request, answer, receipt }) {
  const { holdfast } = useContext(Server);
  const [status, setStatus] = useState(null);
  const place = useRef(null);
  useLayoutEffect(() => place.current.focus(), []);
  useEffect(() => {
    const look = () => holdfast.getRun(request.root_run_id).then((run) => setStatus(run.status), () => {});
    const timers = [500, 2000, 6000].map((pause) => setTimeout(look, pause));
    return () => timers.forEach(clearTimeout);
  }, []);
  const taken = receipt.status === "accepted";
  return html`
    <div class="result" role="status" tabindex="-1" ref=${place}>
      <p><b>${taken ? "Thank you, your answer is taken" : "Your answer is kept"}:</b> ${answerWords(answer)}.</p>
      ${!taken && html`<p>No worker is up at the moment. The run takes it as soon as there is one.</p>`}
      <p>
        ${status ? `The run now: ${RUN_STATES[status]}. ` : "The run goes on. "}
        <a href="#/run/${encodeURIComponent(request.root_run_id)}">Look at the run</a>
      </p>
    </div>
  `;
}

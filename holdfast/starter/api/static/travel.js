// Where in its time a run is looked at, and what can be begun from there.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { Download } from "./download.js";
import { Changes } from "./editing.js";
import { goTo, step } from "./moment.js";
import { RUN_STATES, clock } from "./words.js";

/**
 * `moment`: what `useMoment` found, null for now. `last`: the number of the newest event. `onWanted` is told what somebody wants to begin: `{kind, …}`.
 */
export function Travel({ run, ended, moment, last, changes, onRemove, onWanted, onCompare }) {
  useArrows(run.run_id, moment);
  const { banner, heading } = useFocus(moment);
  const begin = { run, ended, moment, onWanted, onCompare };
  if (!moment) {
    return html`
      <section class="travel" aria-labelledby="travel">
        <h2 id="travel" tabindex="-1" ref=${heading}>Look back, or go on from here</h2>
        <div class="buttons">
          ${last !== null && html`<button onClick=${() => goTo(run.run_id, last)}>Look back</button>`}
          <${Begin} ...${begin} />
        </div>
        <${Explained} run=${run} ended=${ended} isNow />
      </section>
    `;
  }
  return html`
    <${Then} ...${{ run, moment, banner }} />
    <section class="travel" aria-labelledby="travel">
      <h2 id="travel" tabindex="-1" ref=${heading}>Go on from this moment</h2>
      <div class="buttons"><${Begin} ...${begin} /></div>
      <${Explained} run=${run} ended=${ended} />
      <${Changes} changes=${changes} onRemove=${onRemove} />
    </section>
  `;
}

/** Left and right through the checkpoints, wherever the focus is, unless there is something to type or to choose. */
function useArrows(runId, moment) {
  const now = useRef(moment);
  now.current = moment;
  useEffect(() => {
    const pressed = (event) => {
      const way = { ArrowLeft: "earlier", ArrowRight: "later" }[event.key];
      const busy = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented;
      if (!way || busy || !now.current || event.target.closest?.("input, select, textarea, dialog")) return;
      event.preventDefault();
      step(runId, now.current, way);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [runId]);
}

/** Into the past and back the focus goes along: what was chosen may be far down on the page, or gone. */
function useFocus(moment) {
  const banner = useRef(null);
  const heading = useRef(null);
  const before = useRef(moment !== null);
  useEffect(() => {
    const there = moment !== null;
    if (before.current === there) return;
    before.current = there;
    (there ? banner : heading).current.focus({ preventScroll: true });
    // The banner sticks to the top and counts as seen; what is below it is what is wanted.
    if (there) heading.current.scrollIntoView();
  }, [moment === null]);
  return { banner, heading };
}

function Then({ run, moment, banner }) {
  const { at, seq, position, numbers } = moment;
  const go = (way) => () => step(run.run_id, moment, way);
  const words = position ? `checkpoint ${position} of ${numbers.length}` : `checkpoint @${seq}`;
  return html`
    <section class="then notice" aria-label="A moment in the past" tabindex="-1" ref=${banner}>
      <p role="status" class="grow">
        <b>You look at ${words}</b>${at && html`, <time datetime=${at}>${clock(at)}</time>`}
        ${moment.reading && ", reading it…"}.${" "}
        <span class="aside">The run itself is ${RUN_STATES[run.status]}.</span>
      </p>
      ${moment.error && html`<p role="alert">It cannot be shown: ${moment.error.message}</p>`}
      <div class="buttons">
        <button aria-disabled=${seq <= numbers[0]} onClick=${go("earlier")}>
          <span aria-hidden="true">← </span>Previous
        </button>
        <button aria-disabled=${seq >= numbers.at(-1)} onClick=${go("later")}>
          Next<span aria-hidden="true"> →</span>
        </button>
        <button onClick=${() => goTo(run.run_id, null)}>Back to now</button>
      </div>
    </section>
  `;
}

function Begin({ run, ended, moment, onWanted, onCompare }) {
  const isInner = run.run_id.includes("/");
  // Of a run that has done everything there is nothing to resume, except from an earlier moment.
  const resumable = ended && !isInner && (moment !== null || run.status !== "completed");
  const want = (kind) => () => onWanted({ kind });
  return html`
    ${resumable && html`<button key="resume" class="yes" onClick=${want("resume")}>Resume…</button>`}
    <button key="fork" onClick=${want("fork")}>Fork…</button>
    <button key="compare" onClick=${onCompare}>Compare…</button>
    <${Download} key="download" run=${run} moment=${moment} />
  `;
}

function Explained({ run, ended, isNow }) {
  const outer = run.run_id.split("/").slice(0, -1).join("/");
  const fork = html`<b>Fork</b> starts a second run beside this one, which stays as it is.`;
  if (!ended) {
    return html`<p class="quiet">${fork} <b>Resume</b> is for runs that have ended; this one goes on by itself.</p>`;
  }
  if (outer) {
    const link = html`<a class="id" href="#/run/${encodeURIComponent(outer)}">${outer}</a>`;
    return html`<p class="quiet">${fork} To <b>resume</b> a flow inside another, resume the outer one: ${link}</p>`;
  }
  if (isNow && run.status === "completed") {
    return html`<p class="quiet">${fork} Look back to <b>resume</b> from an earlier moment.</p>`;
  }
  return html`
    <p class="quiet"><b>Resume</b> starts a run in place of this one, that keeps what is done and does the rest. ${fork}</p>
  `;
}

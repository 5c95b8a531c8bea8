// The family of a run: what was resumed, forked, done again or imported from what.

import { html, useContext } from "./vendor/htm-preact.js";
import { Badge, When } from "./data.js";
import { placeOf, splitCheckpoint } from "./moment.js";
import { Server, useRefreshed } from "./server.js";
import { RUN_STATES } from "./words.js";

const HOW = { resume: "resumed", fork: "forked", rerun: "a part done again", import: "imported" };

/** The trees the run belongs to; read seldom, because they come from a list that lags behind anyway. */
export function useFamily(runId) {
  const { holdfast } = useContext(Server);
  return useRefreshed(() => holdfast.tree(runId), 15_000, [runId]).value ?? [];
}

/** Everybody in the trees, parents first. */
export function members(trees) {
  return trees.flatMap((member) => [member, ...members(member.children)]);
}

export function Family({ runId, trees }) {
  if (members(trees).length < 2) return null;
  return html`
    <section aria-labelledby="family">
      <h2 id="family">Family</h2>
      <p class="quiet">Which runs were begun from which.</p>
      <${Branch} trees=${trees} runId=${runId} />
    </section>
  `;
}

function Branch({ trees, runId }) {
  const relatives = trees.map((member) => html`<${Relative} key=${member.run_id} ...${{ member, runId }} />`);
  return html`<ul class="family">${relatives}</ul>`;
}

function Relative({ member, runId }) {
  const here = member.run_id === runId;
  return html`
    <li>
      <a class="id" href=${placeOf(member.run_id)} aria-current=${here ? "page" : undefined}>${member.run_id}</a>
      ${here && html` <b>(this one)</b>`} <${Badge} state=${member.status} words=${RUN_STATES} />
      <div class="quiet">${howOf(member)}<${When} at=${member.started_at} /></div>
      ${member.children.length > 0 && html`<${Branch} trees=${member.children} runId=${runId} />`}
    </li>
  `;
}

function howOf({ how, parent_checkpoint_id: from }) {
  if (!how) return "the first, ";
  const [, seq] = from ? splitCheckpoint(from) : [null, null];
  const link = seq !== null && html` from <a href=${placeOf(from)}>moment @${seq}</a>`;
  return html`${HOW[how] ?? how}${link}, `;
}

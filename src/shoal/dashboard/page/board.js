// The board: every run as a card, in the column that says what it waits for.
import {html, useState, useEffect, clean, seconds, ago, Status, Usage, Act, useNow} from "./ui.js";

const COLUMNS = ["queued", "running", "needs you", "ready to merge", "merged", "done", "failed"];
const SHOWN = 30;

export function Board({runs, hasSites, go, link}) {
  const sorted = runs.slice().sort((one, other) => other.started_at - one.started_at);
  const columns = COLUMNS.map((name) => [name, sorted.filter((run) => run.column === name)])
    .filter(([name, found]) => found.length || name === "running" || name === "needs you");
  const flat = columns.flatMap(([, found]) => found.slice(0, SHOWN));
  const [chosen, choose] = useState(-1);
  const now = useNow(runs.some((run) => !run.ended));
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest?.("input, textarea, select, dialog, button, a")) return;
      if (event.key === "j") choose((at) => Math.min(flat.length - 1, at + 1));
      else if (event.key === "k") choose((at) => Math.max(0, at - 1));
      else if (event.key === "Enter" && flat[chosen]) go(flat[chosen]);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [flat.length, chosen]);
  if (!runs.length)
    return html`<main class="empty"><h1>No runs yet</h1><p>Start one with <b>New work</b>, or in a terminal:</p><pre>shoal run --task "Fix the login test" --agent claude</pre></main>`;
  return html`<main class="board"><h1 class="hidden">Runs</h1>${columns.map(([name, found]) => html`
    <section class="column" key=${name} aria-label=${name}><h2>${name} <span class="count">${found.length}</span></h2>
      ${found.slice(0, SHOWN).map((run) => html`<${Card} key=${`${run.site}/${run.run}`} run=${run} now=${now} hasSites=${hasSites} link=${link}
        isChosen=${run === flat[chosen]} />`)}
      ${found.length > SHOWN && html`<p class="more">and ${found.length - SHOWN} older</p>`}</section>`)}</main>`;
}

function Card({run, now, hasSites, link, isChosen}) {
  const took = run.ended ? run.duration_seconds : Math.max(0, now - run.started_at);
  const share = run.workers ? Math.round((100 * run.good) / run.workers) : 0;
  return html`<article class=${`card${isChosen ? " chosen" : ""}`}>
    <h3><a ...${link(run)}>${clean(run.name || run.run)}</a> <${Status} status=${run.status} /></h3>
    <p class="prompt">${clean(run.prompt)}</p>
    <progress max="100" value=${share} aria-label=${`${run.good} of ${run.workers} agents succeeded`}></progress>
    <p class="facts"><span>${run.good}/${run.workers} agents</span>${run.running > 0 && html`<span>${run.running} at work</span>`}
      <span>${seconds(took)}</span><${Usage} usage=${run.usage} />${run.overlaps > 0 && html`<span class="warn">${run.overlaps} overlaps</span>`}
      ${hasSites && html`<span>${run.site}</span>`}<span title=${run.run}>${ago(run.started_at)}</span></p>
    ${run.waiting && html`<p class="warn">waiting: ${clean(run.waiting)}</p>`}
    ${run.error && html`<p class="error">${clean(run.error)}</p>`}
    ${run.gates.map((gate) => html`<${Gate} key=${gate.step} run=${run} gate=${gate} />`)}</article>`;
}

export function Gate({run, gate}) {
  const [message, setMessage] = useState("");
  const fields = (reject) => () => ({action: "approve", run: run.run, step: gate.step, message, reject});
  return html`<div class="gate" role="group" aria-label=${`Gate ${gate.step}`}><p><b>${clean(gate.step)}</b> asks: ${clean(gate.message)}</p>
    <input placeholder="Comment (optional)" aria-label="Comment" value=${message} onInput=${(event) => setMessage(event.target.value)} />
    <${Act} site=${run.site} fields=${fields(false)} label="Approve" tone="primary" />
    <${Act} site=${run.site} fields=${fields(true)} label="Reject" tone="danger" /></div>`;
}

// The board: every run as a card, in the column that says what it waits for.
import {html, useState, useEffect, useRef, clean, seconds, ago, Status, Usage, Act, Bar, useNow, useKeys} from "./ui.js";

const COLUMNS = ["queued", "running", "needs you", "ready to merge", "merged", "done", "failed"];
const ALWAYS = ["running", "needs you", "ready to merge"];
const EMPTY = {"running": "Nothing is running.", "needs you": "Nothing waits for you.", "ready to merge": "No finished work."};
const SHOWN = 30;

export function Board({runs, sites, go, link, onNew}) {
  const [text, setText] = useState(""), [site, setSite] = useState("");
  const box = useRef(null);
  const isWanted = (run) => (!site || run.site === site) && `${run.run} ${run.prompt} ${run.site}`.toLowerCase().includes(text.toLowerCase());
  const sorted = runs.filter(isWanted).sort((a, b) => b.started_at - a.started_at);
  const columns = COLUMNS.map((name) => [name, sorted.filter((run) => run.column === name)])
    .filter(([name, found]) => found.length || ALWAYS.includes(name));
  const flat = columns.flatMap(([, found]) => found.slice(0, SHOWN));
  const [chosen, choose] = useState("");
  const now = useNow(runs.some((run) => !run.ended));
  useKeys((event) => {
    const at = flat.findIndex((run) => run.run === chosen);
    if (event.key === "j") choose(flat[Math.min(flat.length - 1, at + 1)]?.run ?? "");
    else if (event.key === "k") choose(flat[Math.max(0, at - 1)]?.run ?? "");
    else if (event.key === "/") box.current?.focus();
    else if (event.key === "Enter" && flat[at] && !event.target.closest("button, a")) go(flat[at]);
    else return false;
    return true;
  });
  if (!runs.length)
    return html`<main class="empty"><h1>No runs yet</h1><p>Give one or more agents something to do; each works in its own sandbox, and you merge what you like.</p>
      <p><button type="button" class="primary" onClick=${onNew}>Start a run</button></p><p class="dim">Or in a terminal:</p><pre tabindex="0">shoal run --task "Fix the login test" --agent claude</pre></main>`;
  return html`<main class="board"><h1 class="hidden">Runs</h1>
    <div class="tools"><input ref=${box} type="search" aria-label="Find runs" placeholder="Find runs ( / )" value=${text} onInput=${(event) => setText(event.target.value)} />
      ${sites.length > 1 && ["", ...sites].map((name) => html`<button type="button" class="chip" key=${name} aria-pressed=${site === name} onClick=${() => setSite(name)}>${name || "all repositories"}</button>`)}</div>
    <div class="columns">${columns.map(([name, found]) => html`
    <section class=${`column ${name.split(" ")[0]}`} key=${name} aria-label=${name}><h2><span>${name}</span><span class="count">${found.length}</span></h2>
      ${!found.length && html`<p class="none">${text || site ? "None that match." : EMPTY[name]}</p>`}
      ${found.slice(0, SHOWN).map((run) => html`<${Card} key=${`${run.site}/${run.run}`} run=${run} now=${now} hasSites=${sites.length > 1} link=${link} isChosen=${run.run === chosen} />`)}
      ${found.length > SHOWN && html`<p class="more">and ${found.length - SHOWN} older</p>`}</section>`)}</div></main>`;
}

function Card({run, now, hasSites, link, isChosen}) {
  const took = run.ended ? run.duration_seconds : Math.max(0, now - run.started_at);
  const box = useRef(null);
  useEffect(() => { if (isChosen) box.current?.scrollIntoView({block: "nearest", inline: "nearest"}); }, [isChosen]);
  return html`<article class=${`card${isChosen ? " chosen" : ""}`} ref=${box}>
    <h3><a ...${link(run)} title=${run.run}>${clean(run.name || run.run)}</a> <${Status} status=${run.gates.length && run.status === "running" ? "waiting" : run.status} /></h3>
    <p class="prompt">${clean(run.prompt)}</p><${Bar} run=${run} />
    <p class="facts"><span><b>${run.good}</b>/${run.workers + run.queued} agents</span><span>${seconds(took)}</span><${Usage} usage=${run.usage} />
      ${run.overlaps > 0 && html`<span class="warn">${run.overlaps} ${run.overlaps === 1 ? "overlap" : "overlaps"}</span>`}
      ${hasSites && html`<span class="tag">${run.site}</span>`}<span title=${run.run}>${ago(run.started_at)}</span></p>
    ${run.waiting && html`<p class="warn">waiting: ${clean(run.waiting)}</p>`}
    ${run.error && html`<p class="error">${clean(run.error)}</p>`}
    ${run.gates.map((gate) => html`<${Gate} key=${gate.step} run=${run} gate=${gate} />`)}</article>`;
}

export function Gate({run, gate, children}) {
  const [message, setMessage] = useState("");
  const fields = (reject) => () => ({action: "approve", run: run.run, step: gate.step, message, reject});
  return html`<div class="gate" role="group" aria-label=${`Gate ${gate.step}`}><p tabindex="0"><b>${clean(gate.step)}</b> asks: ${clean(gate.message)}</p>${children}
    <input placeholder="Comment (optional)" aria-label="Comment" value=${message} onInput=${(event) => setMessage(event.target.value)} />
    <${Act} site=${run.site} fields=${fields(false)} label="Approve" tone="primary" />
    <${Act} site=${run.site} fields=${fields(true)} label="Reject" tone="danger" /></div>`;
}

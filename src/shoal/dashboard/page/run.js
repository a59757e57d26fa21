// One run: its agents as they work, its plan, time, resources, overlaps, diff and merge, and whichever agent is open.
import {html, useState, useEffect, useMemo, clean, seconds, Status, Usage, Act, Bar, Tabs, useNow, useLoad, useKeys, get, part} from "./ui.js";
import {Agents} from "./agents.js";
import {Gate} from "./board.js";
import {Graph, Matrix} from "./charts.js";
import {Diff} from "./diff.js";
import {Merge} from "./merge.js";
import {SessionPanel} from "./session.js";
import {Resources, Timeline} from "./timeline.js";

const TABS = ["agents", "plan", "timeline", "resources", "overlaps", "diff", "merge", "report"];
const VIEW_KEYS = {l: "log", d: "diff", u: "resources", i: "details"};
const AGAIN_SECONDS = 2;

export function RunPage({place, live, go, link}) {
  const key = `${place.site}/${place.run}`;
  const card = live.runs[key];
  const [page, setPage] = useState(null);
  const [error, setError] = useState("");
  const stamp = card ? `${card.status} ${card.workers} ${card.gates.length} ${card.overlaps} ${card.merged} ${Object.keys(card.deliveries).length} ${card.good}` : "";
  useEffect(() => {  // at once, and then not more often than a person reads: of many agents, one ends all the time
    let timer, isCurrent = true;
    const load = () => get(`/api/run/${part(place.site)}/${part(place.run)}`).then((found) => isCurrent && setPage(found), (raised) => {
      if (isCurrent && raised.isMissing) setError(raised.message);
      else if (isCurrent) timer = setTimeout(load, AGAIN_SECONDS * 1000);  // the server is away
    });
    timer = setTimeout(load, page ? AGAIN_SECONDS * 1000 : 0);
    return () => { isCurrent = false; clearTimeout(timer); };
  }, [key, stamp]);
  const run = useMemo(() => (page ? {...page, ...(card ?? {})} : null), [page, card]);
  const sessions = useMemo(() => {
    const known = Object.fromEntries((page?.sessions ?? []).map((row) => [row.session, row]));
    for (const row of Object.values(live.sessions)) if (row.run === place.run) known[row.session] = row;
    return Object.values(known).sort((a, b) => a.started_at - b.started_at);
  }, [page, live.sessions]);
  const now = useNow(run !== null && !run.ended);
  useKeys((event) => {
    const tab = TABS[Number(event.key) - 1];
    if (event.key === "Escape" && place.session) go({...place, session: undefined});
    else if (tab) go({...place, tab});
    else if (VIEW_KEYS[event.key] && place.session) go({...place, view: VIEW_KEYS[event.key]});
    else if (event.key === "x" && place.session) document.querySelector(".panel button.danger")?.click();
    else return false;
    return true;
  });
  if (error) return html`<main class="empty"><h1>${clean(place.run)}</h1><p class="error">${clean(error)}</p></main>`;
  if (!run) return html`<main class="empty"><p>Loading…</p></main>`;
  const session = sessions.find((row) => row.session === place.session);
  const counts = {agents: sessions.length, overlaps: run.overlaps};
  return html`<main class=${`run${session ? " split" : ""}`}><div class="body">
    <${Head} run=${run} now=${now} />
    ${run.gates.map((gate) => html`<${Gate} key=${gate.step} run=${run} gate=${gate}><a ...${link({...place, tab: "diff"})}>Look at the changes so far</a></${Gate}>`)}
    <${Tabs} label="Views of this run" names=${TABS} counts=${counts} chosen=${place.tab} linkTo=${(tab) => link({...place, tab})} />
    <${Tab} place=${place} run=${run} sessions=${sessions} now=${now} go=${go} link=${link} /></div>
    ${session && html`<${SessionPanel} key=${session.session} place=${place} run=${run} row=${session} peers=${sessions} now=${now} go=${go} link=${link} />`}</main>`;
}

function Tab({place, run, sessions, now, go, link}) {
  switch (place.tab) {
    case "plan": return html`<${Graph} run=${run} sessions=${sessions} link=${link} place=${place} />`;
    case "timeline": return html`<${Timeline} place=${place} run=${run} sessions=${sessions} now=${now} link=${link} />`;
    case "resources": return html`<${Resources} place=${place} sessions=${sessions} link=${link} />`;
    case "overlaps": return html`<${Matrix} place=${place} run=${run} sessions=${sessions} link=${link} />`;
    case "diff": return html`<${Diff} site=${place.site} query=${{run: run.run}} stamp=${run.good} />`;
    case "merge": return html`<${Merge} run=${run} sessions=${sessions} />`;
    case "report": return html`<${Report} run=${run} />`;
    default: return html`<${Agents} place=${place} run=${run} sessions=${sessions} now=${now} go=${go} link=${link} />`;
  }
}

function Head({run, now}) {
  const took = run.ended ? run.duration_seconds : Math.max(0, now - run.started_at);
  const isStopped = ["interrupted", "cancelled"].includes(run.status), isPaused = run.status === "paused";
  const counts = [["good", run.good, "succeeded"], ["bad", run.bad, "failed"], ["live", run.running, "working"], ["dim", Math.max(0, run.workers - run.good - run.bad - run.running), "stopped or never started"], ["dim", run.queued, "queued"]];
  return html`<header class="head"><div class="line"><h1>${clean(run.run)}</h1><${Status} status=${run.status} isPill />
      <span class="space"></span><div class="actions">
      ${!run.ended && html`${isPaused ? html`<${Act} site=${run.site} fields=${{action: "continue", run: run.run}} label="Continue" tone="primary" />`
        : html`<${Act} site=${run.site} fields=${{action: "pause", run: run.run}} label="Pause" title="Start no more agents; those at work go on" />`}
        <${Act} site=${run.site} fields=${{action: "stop", target: run.run}} label="Stop" tone="danger" confirm="Stop all agents of this run? Their work is kept." />`}
      ${run.ended && isStopped && html`<${Act} site=${run.site} fields=${{action: "resume", run: run.run}} label="Resume" tone="primary" />`}
      ${run.ended && run.good < run.workers && !isStopped && html`<${Act} site=${run.site} fields=${{action: "retry", run: run.run}} label="Retry failed" />`}</div></div>
    <${Bar} run=${run} />
    <p class="facts" role="status">${counts.filter(([, count]) => count > 0).map(([kind, count, name]) => html`<span class=${kind}><b>${count}</b> ${name}</span>`)}</p>
    <p class="facts"><span><b>${seconds(took)}</b></span>
      ${run.seconds_left > 2 && !run.ended && html`<span>about ${seconds(run.seconds_left)} left</span>`}<${Usage} usage=${run.usage} />
      <span class=${run.wall === "none" ? "tag warn" : ""} title="What confines the agents">sandbox ${run.wall}</span><span>base <code>${String(run.base).slice(0, 8)}</code></span></p>
    ${run.waiting && html`<p class="warn" role="status">waiting: ${clean(run.waiting)}</p>`}
    ${run.error && html`<p class="error">${clean(run.error)}</p>`}
    ${run.notes.length > 0 && html`<details><summary>${run.notes.length} ${run.notes.length === 1 ? "note" : "notes"}</summary>
      <ul>${run.notes.map((note) => html`<li>${clean(note)}</li>`)}</ul></details>`}</header>`;
}

function Report({run}) {
  const report = useLoad(`/api/report/${part(run.site)}/${part(run.run)}`, run.status + run.good);
  return html`<pre class="report" tabindex="0">${report.value ? clean(JSON.stringify(report.value, null, 2)) : clean(report.error ?? "Loading…")}</pre>`;
}

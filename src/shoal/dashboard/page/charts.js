// The plan as a graph, and which agents changed the same files as a matrix.
import {html, clean, tone, words} from "./ui.js";

const WIDE = 200, HIGH = 58;
const MOST = 40;

function levels(plan) {
  const level = {}, known = new Set(plan.map((stage) => stage.name));
  const find = (stage, path) => {
    if (level[stage.name] !== undefined) return level[stage.name];
    if (path.has(stage.name)) return 0;
    const above = stage.needs.filter((need) => known.has(need)).map((need) => plan.find((other) => other.name === need));
    return (level[stage.name] = above.length ? 1 + Math.max(...above.map((need) => find(need, new Set([...path, stage.name])))) : 0);
  };
  plan.forEach((stage) => find(stage, new Set()));
  return level;
}

export function Graph({run, sessions, link, place}) {
  const plan = run.plan.length ? run.plan : run.steps.map((step) => ({name: step.step, needs: [], group: ""}));
  if (!plan.length) return html`<p class="box dim">No plan is recorded.</p>`;
  const level = levels(plan), rows = {}, spot = {};
  for (const stage of plan) {
    const column = level[stage.name];
    spot[stage.name] = {x: 4 + column * (WIDE + 56), y: 4 + (rows[column] = (rows[column] ?? -1) + 1) * (HIGH + 16)};
  }
  const width = 8 + (Math.max(...Object.values(level)) + 1) * (WIDE + 56) - 56, height = 8 + Math.max(...Object.values(rows).map((row) => row + 1)) * (HIGH + 16) - 16;
  const states = Object.fromEntries(run.steps.map((step) => [step.step, step]));
  return html`<div class="box"><div class="scroll" tabindex="0" role="region" aria-label="Plan"><svg class="graph" width=${width} height=${height}>
    ${plan.flatMap((stage) => stage.needs.filter((need) => spot[need]).map((need) => {
      const from = spot[need], to = spot[stage.name], y1 = from.y + HIGH / 2, y2 = to.y + HIGH / 2;
      return html`<path class="edge" d=${`M${from.x + WIDE} ${y1}C${from.x + WIDE + 28} ${y1} ${to.x - 28} ${y2} ${to.x} ${y2}`} />`;
    }))}
    ${plan.map((stage) => html`<${Node} stage=${stage} at=${spot[stage.name]} state=${states[stage.name]} isGate=${run.gates.some((each) => each.step === stage.name)}
      mine=${sessions.filter((row) => row.step === stage.name)} link=${link} place=${place} />`)}</svg></div>
    <${Steps} run=${run} /></div>`;
}

function Node({stage, at, state, isGate, mine, link, place}) {
  const first = mine[mine.length - 1], now = isGate ? "waits for you" : words(state?.status ?? "not started");
  const parts = [now, state?.total > 1 && `${state.good} of ${state.total}`, state?.rounds > 1 && `round ${state.rounds}`].filter(Boolean);
  const box = html`<rect width=${WIDE} height=${HIGH} rx="9" /><text x="13" y="24">${clean(stage.name).slice(0, 25)}</text>
    <text class="small" x="13" y="43">${parts.join(" · ")}</text><title>${clean(stage.name)}</title>`;
  const kind = `node ${isGate ? "warn" : tone(state?.status)}`, where = `translate(${at.x},${at.y})`;
  return first ? html`<a class=${kind} transform=${where} ...${link({...place, session: first.session})} aria-label=${`${clean(stage.name)}: ${parts.join(", ")}`}>${box}</a>` : html`<g class=${kind} transform=${where}>${box}</g>`;
}

// What a graph has no room for: why a step failed, whom it chose, and what was noted.
function Steps({run}) {
  const told = run.steps.filter((step) => step.error || step.notes.length || step.ranking.length);
  return told.map((step) => html`<h3>${clean(step.step)}</h3>${step.error && html`<p class="error">${clean(step.error)}</p>`}
    <ul>${step.notes.map((note) => html`<li>${clean(note)}</li>`)}${step.ranking.map((row, place) => html`
      <li>${place + 1}. worker ${row.index}${row.index === step.selected ? " (chosen)" : ""}${row.eligible ? "" : " (not eligible)"}: ${clean([row.reasons].flat().join(", "))}</li>`)}</ul>`);
}

export function Matrix({place, run, sessions, link}) {
  const pairs = run.overlap_pairs;
  if (!pairs.length) return html`<p class="box dim">No two agents changed the same files.</p>`;
  const found = new Map();
  for (const pair of pairs) for (const name of pair.sessions) found.set(name, (found.get(name) ?? 0) + pair.files);
  const order = sessions.map((row) => row.session).filter((name) => found.has(name));
  const names = order.length <= MOST ? order : order.sort((a, b) => found.get(b) - found.get(a)).slice(0, MOST);
  const known = new Map(pairs.flatMap((pair) => [[pair.sessions.join("\n"), pair], [pair.sessions.slice().reverse().join("\n"), pair]]));
  return html`<div class="box"><p class="dim">How many files each two agents both changed. <span class="bad">Red</span>: the changes conflict. Grey: workers of one step, which did the same task. Choose a number to compare the two.</p>
    ${names.length < order.length && html`<p class="warn">Shown are the ${MOST} agents with the most overlaps, of ${order.length}.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Overlaps"><table class="matrix"><thead><tr><td></td>
      ${names.map((name, index) => html`<th scope="col" title=${clean(name)}>${index + 1}</th>`)}</tr></thead><tbody>
    ${names.map((name, index) => html`<tr><th scope="row" class="clip">${index + 1} <a ...${link({...place, session: name})}>${clean(name)}</a></th>
      ${names.map((other) => html`<${Cell} place=${place} link=${link} name=${name} other=${other} pair=${name === other ? null : known.get(`${name}\n${other}`)} />`)}</tr>`)}</tbody></table></div>
    <h2>By file</h2><table><thead><tr><th>File</th><th class="number">Agents</th><th>Who</th></tr></thead><tbody>${byFile(pairs).map(([path, who]) => html`
      <tr><td><code>${clean(path)}</code></td><td class="number">${who.size}</td><td class="dim">${[...who].slice(0, 6).map(clean).join(", ")}${who.size > 6 ? ` and ${who.size - 6} more` : ""}</td></tr>`)}</tbody></table></div>`;
}

function Cell({place, link, name, other, pair}) {
  if (!pair) return html`<td class=${name === other ? "same" : ""}></td>`;
  const label = `${clean(name)} and ${clean(other)}: ${pair.files} ${pair.files === 1 ? "file" : "files"}${pair.conflicts.length ? ", in conflict" : ""}`;
  return html`<td class=${pair.step ? "peer" : pair.conflicts.length ? "bad" : "warn"}><a aria-label=${label} title=${clean(pair.paths.join("\n"))} ...${link({...place, session: name, view: "diff", other})}>${pair.files}</a></td>`;
}

function byFile(pairs) {
  const files = new Map();
  for (const pair of pairs) for (const path of pair.paths) files.set(path, new Set([...(files.get(path) ?? []), ...pair.sessions]));
  return [...files].sort((a, b) => b[1].size - a[1].size).slice(0, 100);
}

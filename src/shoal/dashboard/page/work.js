// New work: tasks for agents, or a pipeline of the repository.
import {html, useState, clean, Act, Dialog, useLoad, part} from "./ui.js";

export function NewWork({sites, site, onClose, go}) {
  const [name, setName] = useState(site ?? sites[0]?.name ?? "");
  const [kind, setKind] = useState("tasks");
  const [tasks, setTasks] = useState(""), [agent, setAgent] = useState(""), [pipeline, setPipeline] = useState(""), [inputs, setInputs] = useState("");
  const known = useLoad(name && `/api/catalogue/${part(name)}`).value;
  const lines = (text) => text.split("\n").filter((line) => line.trim());
  const fields = () => (kind === "tasks" ? {action: "run", agent, tasks: lines(tasks)} : {action: "run", pipeline, inputs: lines(inputs)});
  const done = (found) => { onClose(); if (found.document?.run) go({site: name, run: found.document.run}); };
  return html`<${Dialog} title="New work" onClose=${onClose}><form class="stack" onSubmit=${(event) => event.preventDefault()}>
    ${sites.length > 1 && html`<label>Repository <select onChange=${(event) => setName(event.target.value)}>
      ${sites.map((each) => html`<option selected=${each.name === name}>${each.name}</option>`)}</select></label>`}
    <div class="actions" role="group" aria-label="Kind of work">${["tasks", "pipeline"].map((each) => html`
      <button type="button" class="chip" aria-pressed=${kind === each} onClick=${() => setKind(each)}>${each === "tasks" ? "Tasks" : "A pipeline"}</button>`)}</div>
    ${kind === "tasks" ? html`
      <label>Tasks <small>one per line; each gets an agent of its own</small>
        <textarea rows="5" autofocus value=${tasks} onInput=${(event) => setTasks(event.target.value)} placeholder="Fix the login test"></textarea></label>
      <label>Agent or persona <input list="agents" value=${agent} onInput=${(event) => setAgent(event.target.value)} placeholder="the default agent" />
        <datalist id="agents">${(known?.agents?.agents ?? []).map((each) => html`<option value=${each.agent}>${each.ready ? "ready" : each.installed ? "not logged in" : "not installed"}</option>`)}</datalist></label>`
    : html`<label>Pipeline <small>a name in shoal.yaml, or a file of the repository</small>
        <input list="pipelines" value=${pipeline} onInput=${(event) => setPipeline(event.target.value)} placeholder="review.yaml" />
        <datalist id="pipelines">${pipelines(known).map((each) => html`<option value=${each.name}>${each.steps.join(" → ")}</option>`)}</datalist></label>
      ${pipelines(known).length > 0 && html`<div class="actions">${pipelines(known).slice(0, 8).map((each) => html`
        <button type="button" class="chip" title=${each.steps.join(" → ")} aria-pressed=${pipeline === each.name} onClick=${() => setPipeline(each.name)}>${clean(each.name)}</button>`)}</div>`}
      <label>Inputs <small>one per line, as name=value</small>
        <textarea rows="2" value=${inputs} onInput=${(event) => setInputs(event.target.value)} placeholder="topic=checkout"></textarea></label>`}
    <p class="actions"><${Act} site=${name} fields=${fields} label="Start" tone="primary" onDone=${done} disabled=${kind === "tasks" ? !tasks.trim() : !pipeline.trim()} /></p></form></${Dialog}>`;
}

const pipelines = (known) => (known?.pipelines?.files ?? []).flatMap((file) => file.pipelines ?? []);

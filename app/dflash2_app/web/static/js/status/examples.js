// How programs talk to this server: commands to copy, for its own address and models.
import { el, fill, field, select } from "../dom.js";
import { toast } from "../dialog.js";

/** Examples for one model of those that are offered. */
export function examplesPanel(status) {
  const origin = location.origin, key = status.key_required ? "$DFLASH2_API_KEY" : null;
  const body = el("div.stack");
  const show = (model) => fill(body, examples(origin, model, key).map(([title, text]) => block(title, text)));
  const names = status.models.map((model) => model.id);
  const model = field("Model", select(names, names[0], { onchange: (event) => show(event.target.value) }));
  if (names.length) show(names[0]);
  else fill(body, el("p.empty", {}, "This server offers no model."));
  return el("section.panel.stack", { "aria-label": "Interfaces" },
    el("h2", {}, "Interfaces"),
    el("p.wrap", {}, "OpenAI's chat completions, completions and responses, and Anthropic's messages, at ", el("code", {}, `${origin}/v1`),
      key ? ". Put the server's API key into DFLASH2_API_KEY first." : "."),
    names.length ? el("div.row", {}, model.node) : null, body);
}

function examples(origin, model, key) {
  const header = key ? ` \\\n  -H "Authorization: Bearer ${key}"` : "";
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "What is 47 + 85?" }] });
  const python = JSON.stringify(model);
  return [
    ["curl", `curl ${origin}/v1/chat/completions${header} \\\n  -H "Content-Type: application/json" \\\n  -d ${quoted(body)}`],
    ["Python, openai", `${key ? "import os\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url="${origin}/v1", api_key=${key ? 'os.environ["DFLASH2_API_KEY"]' : '"none"'})\n`
      + `reply = client.chat.completions.create(model=${python}, messages=[{"role": "user", "content": "What is 47 + 85?"}])\n`
      + "print(reply.choices[0].message.content)"],
    ["Claude Code and other Anthropic clients", `export ANTHROPIC_BASE_URL=${origin}\nexport ANTHROPIC_AUTH_TOKEN=${key ? `"${key}"` : "none"}\nexport ANTHROPIC_MODEL=${quoted(model)}\nclaude`],
    ["What is loaded, and metrics", `curl ${origin}/v1/models/status${header}\ncurl ${origin}/metrics${header}`],
  ];
}

/** As a POSIX shell takes it. */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function block(title, text) {
  const copy = el("button.small", { type: "button", "aria-label": `Copy: ${title}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied");
    } catch {
      getSelection().selectAllChildren(code);
      toast("The browser does not allow copying here: the text is selected");
    }
  } }, "Copy");
  const code = el("pre.example", { tabindex: "0", "aria-label": title }, text);
  return el("div", {}, el("div.row", {}, el("h3.grow", {}, title), copy), code);
}

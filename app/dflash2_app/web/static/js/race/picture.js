// A race as a picture to share: both lanes' text by block, the numbers, the verdict, who ran and when.
import { fmt } from "../dom.js";
import { MODES, TITLES, dateOf, kindOf, words } from "./record.js";

const WIDTH = 1280, MARGIN = 40, GAP = 28, SCALE = 2, TEXT_SIZE = 15, LINE = 22, MOST_LINES = 26;
const SANS = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif";
const MONO = "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace";

/** Resolves to a PNG, in the page's present colours. */
export async function pictureOf(record) {
  const canvas = document.createElement("canvas");
  let drawing = canvas.getContext("2d");
  drawing.font = `${TEXT_SIZE}px ${MONO}`;
  const laneWidth = (WIDTH - 2 * MARGIN - GAP) / 2;
  const advance = drawing.measureText("m").width;
  const columns = Math.floor((laneWidth - 2 * 16) / advance);
  const lanes = MODES.map((mode) => wrapped(mode, record.lanes[mode], columns));
  const lines = Math.min(MOST_LINES, Math.max(...lanes.map((lane) => lane.length)));
  const said = words(record);
  const verdict = cut(drawing, said.verdict, 18, WIDTH - 2 * MARGIN, 2);
  const prompt = cut(drawing, record.run.request.prompt.replace(/\s+/g, " "), 17, WIDTH - 2 * MARGIN, 2);
  const laneTop = 176 + prompt.length * 24, laneHeight = 96 + lines * LINE;
  const height = laneTop + laneHeight + 74 + verdict.length * 26 + said.warnings.length * 22;
  canvas.width = WIDTH * SCALE;
  canvas.height = height * SCALE;
  drawing = canvas.getContext("2d");
  drawing.scale(SCALE, SCALE);
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(`--${name}`).trim();

  drawing.fillStyle = ink("ground");
  drawing.fillRect(0, 0, WIDTH, height);
  const write = (text, x, y, { size = 15, weight = 400, colour = "text", family = SANS, align = "left" } = {}) => {
    drawing.font = `${weight} ${size}px ${family}`;
    drawing.fillStyle = ink(colour);
    drawing.textAlign = align;
    drawing.fillText(text, x, y);
  };
  const tone = { good: "good", bad: "bad", dim: "text" }[said.tone];
  write(said.speed, MARGIN, 88, { size: 60, weight: 700, colour: tone });
  drawing.font = `700 60px ${SANS}`;
  const after = MARGIN + drawing.measureText(said.speed).width + 24;
  cut(drawing, said.sentence, 20, WIDTH - MARGIN - after, 2).forEach((line, n) => write(line, after, 62 + n * 26, { size: 20, weight: 600 }));
  write(fitted(drawing, record.run.subject, 15, WIDTH - 2 * MARGIN), MARGIN, 128, { colour: "dim" });
  prompt.forEach((line, n) => write(n ? line : `› ${line}`, MARGIN, 162 + n * 24, { size: 17 }));

  MODES.forEach((mode, n) => {
    const x = MARGIN + n * (laneWidth + GAP), { stats } = record.lanes[mode];
    panel(drawing, x, laneTop, laneWidth, laneHeight, ink);
    write(TITLES[mode], x + 16, laneTop + 32, { size: 19, weight: 650 });
    write(`${fmt.fixed(stats.tokens_per_second)} tokens/s`, x + laneWidth - 16, laneTop + 32, { size: 19, weight: 650, align: "right" });
    const parts = [`${stats.generated_tokens} tokens`, fmt.seconds(stats.decode_s)];
    if (mode === "dflash2" && stats.acceptance_length) parts.push(`acceptance length ${stats.acceptance_length.toFixed(2)}`);
    write(parts.join(" · "), x + 16, laneTop + 58, { colour: "dim" });
    drawText(drawing, lanes[n], x + 16, laneTop + 88, advance, ink);
  });
  let y = laneTop + laneHeight + 38;
  verdict.forEach((line) => { write(line, MARGIN, y, { size: 18, weight: 600, colour: said.verdictTone }); y += 26; });
  said.warnings.forEach((line) => { write(fitted(drawing, line, 15, WIDTH - 2 * MARGIN), MARGIN, y, { colour: "warn" }); y += 22; });
  legend(drawing, y + 8, ink, write);
  const machine = [record.run.machine?.chip, dateOf(record), record.run.program].filter(Boolean).join(" · ");
  write(fitted(drawing, machine, 14, WIDTH / 2), WIDTH - MARGIN, y + 8, { size: 14, colour: "dim", align: "right" });
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function panel(drawing, x, y, width, height, ink) {
  drawing.beginPath();
  drawing.roundRect(x, y, width, height, 12);
  drawing.fillStyle = ink("panel");
  drawing.fill();
  drawing.strokeStyle = ink("line");
  drawing.stroke();
}

/** Lines of a lane: each a list of {text, kind, column}. */
function wrapped(mode, lane, columns) {
  const lines = [[]];
  let column = 0;
  for (const round of lane.rounds) {
    round.tokens.forEach(([, text], n) => {
      const kind = kindOf(mode, round, n);
      for (const sign of text.replace(/\t/g, "    ")) {
        if (sign === "\n" || column >= columns) {
          lines.push([]);
          column = 0;
        }
        if (sign === "\n") continue;
        const last = lines.at(-1).at(-1);
        if (last && last.kind === kind && last.token === `${round.t}/${n}`) last.text += sign;
        else lines.at(-1).push({ text: sign, kind, column, token: `${round.t}/${n}` });
        column += 1;
      }
    });
  }
  while (lines.length > 1 && !lines.at(-1).length) lines.pop();
  return lines;
}

function drawText(drawing, lines, x, y, advance, ink) {
  drawing.font = `${TEXT_SIZE}px ${MONO}`;
  drawing.textAlign = "left";
  const whole = lines.length <= MOST_LINES;
  lines.slice(0, whole ? MOST_LINES : MOST_LINES - 1).forEach((line, row) => {
    for (const { text, kind, column } of line) {
      if (kind !== "plain") {
        drawing.fillStyle = ink(kind);
        drawing.fillRect(x + column * advance, y + row * LINE - 16, [...text].length * advance, LINE - 1);
      }
      drawing.fillStyle = ink("text");
      drawing.fillText(text, x + column * advance, y + row * LINE);
    }
  });
  if (!whole) {
    drawing.fillStyle = ink("dim");
    drawing.fillText(`… ${lines.length - MOST_LINES + 1} more lines`, x, y + (MOST_LINES - 1) * LINE);
  }
}

function legend(drawing, y, ink, write) {
  let x = MARGIN;
  for (const [kind, label] of [["first", "the prompt's pass"], ["accepted", "accepted draft"], ["bonus", "the target's own"]]) {
    drawing.fillStyle = ink(kind);
    drawing.fillRect(x, y - 13, 18, 16);
    write(label, x + 25, y, { size: 14, colour: "dim" });
    x += 40 + drawing.measureText(label).width;
  }
}

function fitted(drawing, text, size, room) {
  return cut(drawing, text, size, room, 1)[0];
}

/** Break text into at most `most` lines that fit; the last one ends in … when something is left. */
function cut(drawing, text, size, room, most) {
  drawing.font = `${size >= 18 ? 600 : 400} ${size}px ${SANS}`;
  const fits = (line) => drawing.measureText(line).width <= room;
  const lines = [];
  let rest = text.trim();
  while (rest && lines.length < most) {
    let end = rest.length;
    while (end > 1 && !fits(rest.slice(0, end) + (lines.length === most - 1 && end < rest.length ? "…" : ""))) end -= 1;
    if (end < rest.length && lines.length < most - 1) end = rest.lastIndexOf(" ", end) > 0 ? rest.lastIndexOf(" ", end) : end;
    const last = lines.length === most - 1 && end < rest.length;
    lines.push(rest.slice(0, end).trim() + (last ? "…" : ""));
    rest = last ? "" : rest.slice(end).trim();
  }
  return lines.length ? lines : [""];
}

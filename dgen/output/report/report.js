"use strict";
(() => {
  const data = JSON.parse(document.getElementById("trace").textContent);
  const find = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const PLAY_MILLISECONDS = 160;

  // Every step of every canvas in one row, which the slider runs over.
  const steps = data.canvases.flatMap((canvas, c) => canvas.steps.map((step, s) => ({ ...step, canvas: c, step: s })));
  if (!steps.length) return;
  const entropies = steps.flatMap((step) => step.entropy);
  const most = Math.max(0.1, entropies.reduce((a, b) => Math.max(a, b), 0));
  let current = 0, timer = null, open = null;

  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // What a browser would not show, or would turn the text around with, becomes visible.
  const visible = (text) => text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (char) => "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"));

  // A token of nothing but joiners would leave no place to point at.
  const pointable = (text) => /^[\u034f\u200b-\u200d\u2060\ufe00-\ufe0f]+$/.test(text) ?
    [...text].map((char) => "\\u" + char.charCodeAt(0).toString(16)).join("") : visible(text);

  const nameOf = (id) => {
    const name = data.names[id];
    if (name === undefined) return `<id ${id}>`;
    if (typeof name === "string") return pointable(name);
    if (Array.isArray(name)) return name.map((byte) => `<0x${byte.toString(16).padStart(2, "0").toUpperCase()}>`).join("");
    return visible(name.special);
  };
  const quoted = (id) => nameOf(id).replaceAll("\n", "↵").replace(/^ | $/g, "␣") || "∅";
  const isSpecial = (id) => { const name = data.names[id]; return name === undefined || name.special !== undefined; };

  // The text of each position; neighbouring bytes that are a character only together stand with the first of them.
  const textsOf = (draft) => {
    const texts = [];
    for (let at = 0; at < draft.length; at++) {
      const name = data.names[draft[at]];
      if (Array.isArray(name)) {
        const bytes = [];
        while (at < draft.length && Array.isArray(data.names[draft[at]])) bytes.push(...data.names[draft[at++]]);
        texts.push(visible(new TextDecoder().decode(new Uint8Array(bytes))));
        while (texts.length < at) texts.push("");
        at--;
      } else if (isSpecial(draft[at])) {
        texts.push(at && draft[at - 1] === draft[at] ? "▪" : nameOf(draft[at]));
      } else texts.push(pointable(name));
    }
    return texts;
  };

  const pastText = (upTo) => {
    let ids = [];
    for (const canvas of data.canvases.slice(0, upTo)) {
      const last = canvas.steps[canvas.steps.length - 1];
      ids = ids.concat(last.draft.slice(0, canvas.emitted));
    }
    return textsOf(ids.filter((id) => !isSpecial(id))).join("");
  };

  const drawText = () => {
    const step = steps[current], before = step.step ? steps[current - 1].draft : [];
    const accepted = new Set(step.accepted), texts = textsOf(step.draft);
    const tokens = texts.map((text, at) => {
      const token = element("span", { className: "token", textContent: text.replaceAll("\n", "↵\n"), tabIndex: -1 });
      token.style.setProperty("--h", Math.min(1, step.entropy[at] / most).toFixed(3));
      token.classList.toggle("accepted", accepted.has(at));
      token.classList.toggle("changed", step.step > 0 && before[at] !== step.draft[at]);
      token.classList.toggle("special", isSpecial(step.draft[at]));
      token.dataset.at = at;
      return token;
    });
    const focused = find("text").contains(document.activeElement) ? Number(document.activeElement.dataset.at) : null;
    find("text").replaceChildren(element("span", { className: "past", textContent: pastText(step.canvas) }), ...tokens);
    tokens[open ?? focused ?? 0].tabIndex = 0;
    if (focused !== null) tokens[focused].focus({ preventScroll: true });
    if (open !== null) showTip(open);
  };

  const drawNumbers = () => {
    const step = steps[current], canvas = data.canvases[step.canvas];
    find("where").textContent = `canvas ${step.canvas + 1}, step ${step.step + 1}/${canvas.steps.length}`;
    const ended = step.step === canvas.steps.length - 1 && canvas.convergedBy ? `, converged by ${canvas.convergedBy}` : "";
    find("numbers").textContent = `T ${step.temperature.toFixed(3)}, mean entropy ${step.mean.toFixed(4)}, ` +
      `${step.accepted.length}/${data.canvasLen} accepted, ${step.changed} changed, ${step.time.toFixed(2)} s${ended}`;
    find("slider").setAttribute("aria-valuetext", find("where").textContent);
  };

  const go = (index) => {
    current = Math.max(0, Math.min(steps.length - 1, index));
    find("slider").value = current;
    drawNumbers();
    drawText();
    for (const plot of plots) plot();
  };

  const play = (on) => {
    clearInterval(timer);
    timer = null;
    if (on) {
      if (current === steps.length - 1) go(0);
      timer = setInterval(() => current < steps.length - 1 ? go(current + 1) : play(false), PLAY_MILLISECONDS);
    }
    find("play").textContent = on ? "Pause" : "Play";
    find("play").setAttribute("aria-pressed", String(on));
  };

  const percent = (share) => share > 0 && share < 0.0001 ? "<0.01%" : `${(share * 100).toFixed(share < 0.1 ? 2 : 1)}%`;

  const alternatives = (at) => {
    const canvas = data.canvases[steps[current].canvas], found = canvas.top[at];
    if (!canvas.convergedBy) return [element("p", { textContent: "This canvas did not converge." })];
    if (at >= canvas.emitted) return [element("p", { textContent: "Not emitted: behind the end of the text." })];
    if (!found || !found.top.length) {
      return [element("p", { textContent: "No alternatives were recorded; generate --logprobs 5 --trace FILE records them." })];
    }
    const rows = found.top.map(([id, logprob]) => {
      const share = logprob === null ? 0 : Math.exp(logprob);
      const bar = element("div", { className: "bar" });
      bar.style.width = `${(share * 100).toFixed(1)}%`;
      return element("tr", {}, element("td", { textContent: quoted(id) }), element("td", {}, bar),
        element("td", { textContent: percent(share) }));
    });
    return [element("p", { textContent: "Likeliest at the converging step:" }), element("table", {}, ...rows)];
  };

  const showTip = (at) => {
    const step = steps[current], tip = find("tip"), token = find("text").children[at + 1];
    for (const other of find("text").querySelectorAll(".open")) other.classList.remove("open");
    token.classList.add("open");
    open = at;
    tip.replaceChildren(
      element("h3", { textContent: quoted(step.draft[at]) }),
      element("p", { textContent: `position ${at}, id ${step.draft[at]}, entropy ${step.entropy[at].toFixed(4)}, ` +
        (step.accepted.includes(at) ? "accepted" : "not accepted") }),
      ...alternatives(at));
    tip.hidden = false;
    token.setAttribute("aria-describedby", "tip");
    const box = token.getBoundingClientRect(), wide = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(8, Math.min(box.left, wide - tip.offsetWidth - 8)) + scrollX}px`;
    const below = box.bottom + 6 + tip.offsetHeight < innerHeight || box.top < tip.offsetHeight;
    tip.style.top = `${(below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + scrollY}px`;
  };

  const hideTip = () => {
    find("tip").hidden = true;
    open = null;
    for (const other of find("text").querySelectorAll(".open")) other.classList.remove("open");
  };

  const makePlot = (title, values, limit, digits) => {
    const highest = values.reduce((a, b) => Math.max(a, b), limit ?? 0), top = highest * 1.05 || 1, last = Math.max(1, values.length - 1);
    const x = (index) => (index / last) * 100, y = (value) => 98 - (value / top) * 94;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 100 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${title}, from ${values[0].toFixed(digits)} to ${values[last]?.toFixed(digits) ?? values[0].toFixed(digits)}`);
    const line = (className, d) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", className);
      path.setAttribute("d", d);
      svg.append(path);
      return path;
    };
    steps.forEach((step, index) => { if (index && !step.step) line("border", `M${x(index - 0.5)} 0V100`); });
    if (limit !== null) line("limit", `M0 ${y(limit)}H100`);
    // A canvas's curve ends where the next begins.
    line("curve", values.map((value, index) => `${steps[index].step ? "L" : "M"}${x(index)} ${y(value)}`).join(""));
    const now = line("now", "M0 0V100"), value = element("b");
    const seek = (event) => {
      const box = svg.getBoundingClientRect();
      go(Math.round(((event.clientX - box.left) / box.width) * last));
    };
    svg.addEventListener("pointerdown", (event) => { play(false); svg.setPointerCapture(event.pointerId); seek(event); });
    svg.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
    find("plots").append(element("figure", {}, element("figcaption", {}, element("span", { textContent: title }), value), svg));
    return () => {
      now.setAttribute("d", `M${x(current)} 0V100`);
      value.textContent = `${values[current].toFixed(digits)} of 0–${highest.toFixed(digits)}`;
    };
  };

  const plots = [
    makePlot(data.confidence === null ? "mean entropy" : "mean entropy, dashed: confidence", steps.map((step) => step.mean), data.confidence, 4),
    makePlot("accepted positions", steps.map((step) => step.accepted.length), null, 0),
    makePlot("temperature", steps.map((step) => step.temperature), null, 3),
  ];

  find("slider").max = steps.length - 1;
  find("most").textContent = most.toFixed(1);
  find("slider").addEventListener("input", () => { play(false); go(Number(find("slider").value)); });
  find("play").addEventListener("click", () => play(timer === null));

  const text = find("text"), atOf = (event) => event.target.closest?.(".token")?.dataset.at;
  text.addEventListener("pointerover", (event) => {
    if (event.pointerType === "mouse" && atOf(event) !== undefined) showTip(Number(atOf(event)));
  });
  text.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse" && !text.contains(document.activeElement)) hideTip();
  });
  text.addEventListener("click", (event) => {
    if (atOf(event) !== undefined) { event.target.closest(".token").focus(); showTip(Number(atOf(event))); }
  });
  text.addEventListener("focusin", (event) => { if (atOf(event) !== undefined) showTip(Number(atOf(event))); });
  text.addEventListener("focusout", (event) => { if (event.relatedTarget && !text.contains(event.relatedTarget)) hideTip(); });
  document.addEventListener("click", (event) => { if (!text.contains(event.target) && !find("steps").contains(event.target)) hideTip(); });

  const keys = {
    ArrowLeft: () => go(current - 1), ArrowRight: () => go(current + 1),
    Home: () => go(0), End: () => go(steps.length - 1),
    " ": () => play(timer === null),
    ArrowUp: () => focusToken(-1), ArrowDown: () => focusToken(1), Escape: () => hideTip(),
  };
  const focusToken = (by) => {
    const at = Math.max(0, Math.min(data.canvasLen - 1, (open ?? -1) + by));
    for (const token of text.querySelectorAll(".token")) token.tabIndex = -1;
    text.children[at + 1].tabIndex = 0;
    text.children[at + 1].focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
    const target = event.target;
    // The button takes its own space, a summary too; up and down scroll the page unless a token is looked at.
    if (event.key === " " && (target.tagName === "BUTTON" || target.tagName === "SUMMARY")) return;
    if (event.key.startsWith("Arrow") && !event.key.match(/Left|Right/) && !text.contains(target)) return;
    event.preventDefault();
    if (event.key !== " " && event.key !== "Escape" && event.key.match(/Left|Right|Home|End/)) play(false);
    keys[event.key]();
  });

  find("steps").hidden = false;
  go(steps.length - 1);
})();

/* Markdown to DOM nodes. No HTML is ever parsed: everything becomes text nodes inside elements made here, so nothing that a
 * model writes can become markup or script. While an answer streams, render() keeps the nodes of blocks that did not change. */
"use strict";

const Markdown = (() => {
  const LINK = /^(https?:\/\/|mailto:)[^\s]+$/i;

  function element(name, ...children) {
    const e = document.createElement(name);
    e.append(...children);
    return e;
  }

  /* Inline: code, links, bold, italic, struck. One pass over the text; what does not close nearby stays as it is. The
   * lengths are bounded, because the last paragraph is read again whenever it grows: time must not be its square. */
  const INLINE = /(`+)([\s\S]{0,2000}?[^`])\1(?!`)|\[([^[\]\n]{0,500})\]\(([^()\s]{0,2000}(?:\([^()\s]{0,500}\)[^()\s]{0,500}){0,4})\)|(\*\*|__)(?=\S)([\s\S]{0,600}?\S)\5|(\*|_)(?=\S)([\s\S]{0,600}?\S)\7|~~(?=\S)([\s\S]{0,600}?\S)~~|\\([\\`*_{}[\]()#+\-.!~|<>])|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?"'])/g;

  function link(text, target, depth) {
    if (!LINK.test(target)) return [text + " (" + target + ")"];
    const a = element("a", ...inline(text || target, depth));
    a.href = target;
    a.target = "_blank";
    a.rel = "noopener noreferrer";
    return [a];
  }

  function inline(text, depth = 0) {
    if (depth > 8) return [text];
    const out = [];
    let at = 0;
    for (const m of text.matchAll(INLINE)) {
      const word = c => c !== undefined && /\w/.test(c);
      if (m[7] === "_" && (word(text[m.index - 1]) || word(text[m.index + m[0].length]))) continue; // snake_case
      if (m.index > at) out.push(text.slice(at, m.index));
      if (m[1]) out.push(element("code", m[2].replace(/^ (.*\S.*) $/s, "$1")));
      else if (m[4] !== undefined) out.push(...link(m[3], m[4], depth + 1));
      else if (m[5]) out.push(element("strong", ...inline(m[6], depth + 1)));
      else if (m[7]) out.push(element("em", ...inline(m[8], depth + 1)));
      else if (m[9]) out.push(element("s", ...inline(m[9], depth + 1)));
      else if (m[10]) out.push(m[10]);
      else out.push(...link("", m[11], 9));
      at = m.index + m[0].length;
    }
    if (at < text.length) out.push(text.slice(at));
    return out;
  }

  const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
  const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
  const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
  const SPLIT = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;

  /* Lines to blocks, each with the text that it came from. */
  function blocks(text) {
    const lines = text.split("\n"), out = [];
    let i = 0;
    const until = (stop) => {
      const from = i;
      for (i++; i < lines.length && !stop(lines[i]); i++);
      return lines.slice(from, i);
    };
    const starts = l => !l.trim() || FENCE.test(l) || /^ {0,3}#{1,6}\s/.test(l) || /^ {0,3}>/.test(l) || ITEM.test(l) || RULE.test(l);
    while (i < lines.length) {
      const line = lines[i], fence = FENCE.exec(line);
      if (!line.trim()) {
        i++;
      } else if (fence) {
        const from = ++i, close = new RegExp("^ {0,3}" + fence[2][0] + "{" + fence[2].length + ",}\\s*$");
        while (i < lines.length && !close.test(lines[i])) i++;
        out.push({kind: "code", lang: fence[3].trim(), text: lines.slice(from, i).join("\n")});
        i++;
      } else if (/^ {0,3}#{1,6}\s/.test(line)) {
        out.push({kind: "head", level: /#+/.exec(line)[0].length, text: line.replace(/^\s*#+\s*/, "").replace(/\s+#+\s*$/, "")});
        i++;
      } else if (RULE.test(line)) {
        out.push({kind: "rule", text: ""});
        i++;
      } else if (/^ {0,3}>/.test(line)) {
        out.push({kind: "quote", text: until(l => !l.trim()).map(l => l.replace(/^ {0,3}> ?/, "")).join("\n")});
      } else if (ITEM.test(line)) {
        out.push({kind: "list", text: until(l => (!l.trim() && !/^\s+\S|^\s*([-*+]|\d{1,9}[.)])\s/.test(lines[i + 1] || "")) ||
          (l.trim() && !ITEM.test(l) && !/^\s/.test(l) && (FENCE.test(l) || /^#{1,6}\s/.test(l) || !lines[i - 1].trim()))).join("\n")});
      } else if (line.includes("|") && SPLIT.test(lines[i + 1] || "")) {
        out.push({kind: "table", text: until(l => !l.includes("|")).join("\n")});
      } else {
        out.push({kind: "text", text: until(l => starts(l)).join("\n")});
      }
    }
    return out;
  }

  /* navigator.clipboard is for https and this machine only; a server in the local network is often neither. */
  async function copyText(button, text) {
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      const area = element("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  function code(b) {
    const pre = element("pre"), c = element("code", b.text), copy = element("button", "Copy");
    if (b.lang) {
      const lang = element("span", b.lang.split(/\s/)[0].slice(0, 40));
      lang.className = "lang";
      pre.append(lang);
    }
    copy.type = "button";
    copy.addEventListener("click", () => copyText(copy, c.textContent));
    pre.append(c, copy);
    return pre;
  }

  function list(text, depth) {
    const lines = text.split("\n"), first = ITEM.exec(lines[0]), ordered = /\d/.test(first[2]);
    const root = element(ordered ? "ol" : "ul");
    if (ordered && parseInt(first[2], 10) !== 1) root.start = parseInt(first[2], 10);
    let item = null;
    const flush = () => {
      if (!item) return;
      const [head, ...rest] = item, li = element("li");
      const inner = blocks(rest.map(l => l.replace(/^ {1,4}|^\t/, "")).join("\n"));
      const box = /^\[([ xX])\]\s+(.*)$/.exec(head);
      if (box) {
        const tick = element("input");
        tick.type = "checkbox";
        tick.disabled = true;
        tick.checked = box[1] !== " ";
        li.append(tick, " ", ...inline(box[2]));
      } else {
        li.append(...inline(head));
      }
      if (inner.length) li.append(...inner.map(b => node(b, depth + 1)));
      root.append(li);
    };
    for (const line of lines) {
      const m = ITEM.exec(line);
      if (m && m[1].length <= first[1].length + 1) {
        flush();
        item = [m[3]];
      } else {
        item.push(line);
      }
    }
    flush();
    return root;
  }

  function table(text) {
    const cells = l => l.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/).map(c => c.trim().replace(/\\\|/g, "|"));
    const [head, , ...rows] = text.split("\n"), names = cells(head);
    const t = element("table", element("thead", element("tr", ...names.map(c => element("th", ...inline(c))))));
    t.append(element("tbody", ...rows.map(r => {
      const row = cells(r).slice(0, names.length);
      while (row.length < names.length) row.push("");
      return element("tr", ...row.map(c => element("td", ...inline(c))));
    })));
    return t;
  }

  function node(b, depth = 0) {
    if (depth > 12) return element("p", b.text);
    switch (b.kind) {
      case "code": return code(b);
      case "head": return element("h" + b.level, ...inline(b.text));
      case "rule": return element("hr");
      case "quote": return element("blockquote", ...blocks(b.text).map(c => node(c, depth + 1)));
      case "list": return list(b.text, depth);
      case "table": return table(b.text);
      default: {
        const p = element("p");
        b.text.split("\n").forEach((l, i) => p.append(...(i ? [element("br")] : []), ...inline(l)));
        return p;
      }
    }
  }

  /* Fills `root` with the text; what was there for equal leading blocks stays. */
  function render(root, text) {
    const now = blocks(text), before = root.markdownBlocks || [];
    let same = 0;
    while (same < now.length && same < before.length && now[same].kind === before[same].kind &&
           now[same].text === before[same].text && now[same].lang === before[same].lang) same++;
    while (root.childNodes.length > same) root.lastChild.remove();
    for (const b of now.slice(same)) root.append(node(b));
    root.markdownBlocks = now;
  }

  return {render, copy: copyText};
})();

"""Checks a page of moert-report in Chromium against the files of the run; tests/e2e/page.sh runs it. It shares no code with the page.

figures RUN PAGE [SMOOTHING]   every curve, tick, mark, fact, option, bar, shade and number of the page
controls RUN PAGE              the slider smooths the curves; the pointer shows the numbers of the nearest step
looks PAGE                     nothing is wider than a screen of 390 pixels, and all text stands out, light and dark
"""
import datetime
import html.parser
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

TIMES = ["GEMMs", "other kernels", "dispatch and combine", "messages", "waiting for other ranks", "host"]
GEMMS = ["experts fprop", "experts dgrad", "experts wgrad", "attention projections", "head", "router projection"]
CLASS = {**{name: 0 for name in GEMMS}, "dispatch": 2, "combine": 2, "exchange: messages": 3, "other messages": 3, "host": 5, "training data": 5}
CHARTS = [["loss", "heldout_loss", "test_loss"], ["lr"], ["grad_norm"], ["tokens_per_s"], ["expert_load"], ["mfu"]]
PIXEL = 0.011  # coordinates have two decimals
wrong = []


def expect(holds, what):
    if not holds:
        wrong.append(what)


def close(a, b, tolerance, what):
    expect(abs(a - b) <= tolerance, f"{what}: {a}, not {b}")


# ---- the browser's document ----


class Element:
    def __init__(self, name, attributes, parent):
        self.name, self.attributes, self.parent, self.children, self.own = name, attributes, parent, [], []

    def get(self, key):
        return self.attributes.get(key)

    def text(self):
        return "".join(part if isinstance(part, str) else part.text() for part in self.own)

    def all(self, name=None, **attributes):
        wanted = {key.replace("_", "-"): value for key, value in attributes.items()}
        for child in self.children:
            if name in (None, child.name) and all(child.get(key) == value or (value is any and child.get(key) is not None) for key, value in wanted.items()):
                yield child
            yield from child.all(name, **attributes)

    def has_class(self, name):
        return name in (self.get("class") or "").split()


class Reader(html.parser.HTMLParser):
    EMPTY = {"meta", "input", "br"}

    def __init__(self):
        super().__init__()
        self.root = self.at = Element("", {}, None)

    def handle_starttag(self, name, attributes):
        made = Element(name, dict(attributes), self.at)
        self.at.children.append(made)
        self.at.own.append(made)
        if name not in self.EMPTY:
            self.at = made

    def handle_endtag(self, name):
        while self.at.parent and self.at.name != name:
            self.at = self.at.parent
        self.at = self.at.parent or self.at

    def handle_data(self, text):
        self.at.own.append(text)


def document(page, fragment="", options=()):
    command = [os.environ.get("BROWSER", "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--window-size=1280,2000", *options]
    text = subprocess.run([*command, "--dump-dom", "file://" + os.path.abspath(page) + fragment], capture_output=True, timeout=100).stdout
    reader = Reader()
    reader.feed(text.decode("utf-8"))
    return reader.root


def with_script(page, script):
    """A copy of the page with one more script at its end."""
    text = open(page, encoding="utf-8").read()
    with tempfile.NamedTemporaryFile("w", suffix=".html", delete=False, encoding="utf-8") as file:
        file.write(text.replace("</body>", f"<script>{script}</script></body>"))
    return file.name


# ---- the run ----


def lines_of(run, name):
    path = os.path.join(run, name)
    return [json.loads(line) for line in open(path, encoding="utf-8") if line.endswith("\n")] if os.path.exists(path) else []


def object_of(run, name):
    path = os.path.join(run, name)
    return json.load(open(path, encoding="utf-8")) if os.path.exists(path) else None


def column(steps, name):
    return [step.get(name) for step in steps]


def smoothed(values, window):
    half = window // 2
    near = [[v for v in values[max(i - half, 0):i + half + 1] if v is not None] for i in range(len(values))]
    return [None if value is None else statistics.fmean(part) for value, part in zip(values, near)]


def parting(steps):
    """The step of the lowest held-out loss, if two evaluations or more follow and training still falls by 1 %."""
    evaluations, since = [], []
    for step in steps:
        since += [] if step["loss"] is None else [step["loss"]]
        if step.get("heldout_loss") is not None:
            evaluations.append((step["heldout_loss"], step["step"], statistics.fmean(since) if since else float("nan")))
            since = []
    if not evaluations:
        return None
    best = min(range(len(evaluations)), key=lambda i: evaluations[i][0])
    later = evaluations[best + 1:]
    return evaluations[best][1] if len(later) >= 2 and later[-1][2] <= 0.99 * later[0][2] else None


# ---- charts ----


def scale_of(svg, steps):
    left, width, first, last = map(float, svg.get("data-x").split())
    top, height, low, high = map(float, svg.get("data-y").split())
    expect(first == steps[0]["step"] and last == max(steps[-1]["step"], first + 1), "the axis of the steps has other ends")
    x = lambda step: left + (step - first) / (last - first) * width  # noqa: E731
    y = lambda value: top + (high - value) / (high - low) * height  # noqa: E731
    return x, y, low, high, width


def number_of(text):
    factor = {"k": 1e3, "M": 1e6}.get(text[-1], 1)
    return float(text.rstrip("kM")) * factor


def check_axes(svg, name, x, y, low, high, values):
    expect(low <= min(values) * (1 + 1e-9) and high >= max(values) * (1 - 1e-9), f"{name}: the axis {low} to {high} lacks values")
    expect(name == "loss" or low == 0, f"{name}: the axis does not begin at 0")
    for kind, least in (("up", 2), ("across", 2)):
        texts = list(svg.all("text", **{"class": kind}))
        expect(least <= len(texts) <= 20, f"{name}: {len(texts)} ticks")
        for text in texts:
            value = number_of(text.text())
            close(value, float(text.get("data-value")), 1e-6 * abs(value), f"{name}: a tick's number")
            place = float(text.get("y" if kind == "up" else "x"))
            close(place, y(value) if kind == "up" else x(value), PIXEL, f"{name}: the place of tick {value}")
        places = sorted(float(text.get("y" if kind == "up" else "x")) for text in texts)
        expect(all(b - a > 12 for a, b in zip(places, places[1:])), f"{name}: ticks overlap")


def check_curve(path, name, x, y, width, steps, smoothing):
    values = column(steps, name)
    window, piece = int(path.get("data-window")), int(path.get("data-piece"))
    expect(piece == -(-len(values) // width), f"{name}: pieces of {piece} steps")
    values = smoothed(values, window)
    expected, drawing = [], False
    for i in range(0, len(values), piece):
        part = [value for value in values[i:i + piece] if value is not None]
        if part:
            expected.append(("L" if drawing else "M", statistics.fmean(s["step"] for s in steps[i:i + piece]), statistics.fmean(part)))
        drawing = bool(part)
    drawn = re.findall(r"([ML])([-\d.]+) ([-\d.]+)", path.get("d"))
    expect(len(drawn) == len(expected), f"{name}: {len(drawn)} points, not {len(expected)}")
    for (kind, at_x, at_y), (want, step, value) in zip(drawn, expected):
        expect(kind == want, f"{name}: a gap at step {step}")
        close(float(at_x), x(step), PIXEL, f"{name}: x of step {step}")
        close(float(at_y), y(value), PIXEL, f"{name}: y of step {step}")
    return window


def check_charts(root, steps, smoothing):
    charts = {svg.get("data-chart"): svg for svg in root.all("svg", data_chart=any)}
    wanted = [[name for name in names if any(v is not None for v in column(steps, name))] for names in CHARTS]
    expect(list(charts) == [names[0] for names in wanted if names], f"charts: {list(charts)}")
    for names in wanted:
        if not names or names[0] not in charts:
            continue
        svg = charts[names[0]]
        x, y, low, high, width = scale_of(svg, steps)
        check_axes(svg, names[0], x, y, low, high, [v for name in names for v in column(steps, name) if v is not None])
        for name in names:
            drawn = list(svg.all(data_series=name))
            if name in ("heldout_loss", "test_loss"):
                points = [(x(s["step"]), y(s[name])) for s in steps if s.get(name) is not None]
                circles = [(float(c.get("cx")), float(c.get("cy"))) for c in drawn[0].all("circle")]
                path = [tuple(map(float, p)) for p in re.findall(r"([-\d.]+) ([-\d.]+)", next(drawn[0].all("path")).get("d"))]
                expect(len(circles) == len(points) and path == circles, f"{name}: {len(circles)} dots, not {len(points)}")
                for dot, point in zip(circles, points):
                    expect(max(abs(dot[0] - point[0]), abs(dot[1] - point[1])) <= PIXEL, f"{name}: a dot at {dot}, not {point}")
            else:
                windows = [check_curve(path, name, x, y, width, steps, smoothing) for path in drawn]
                expect(windows == ([1] if smoothing == 1 or name == "lr" else [1, smoothing]), f"{name}: means of {windows} steps")
    check_marks(charts.get("loss") or next(iter(charts.values())), steps)


def check_marks(svg, steps):
    x = scale_of(svg, steps)[0]
    skipped = [float(path.get("data-step")) for path in svg.all("path", **{"class": "skipped"})]
    expect(skipped == [s["step"] for s in steps if s.get("skipped")], f"skipped steps {skipped}")
    parts = [path for path in svg.all("path", **{"class": "parts"})]
    step = parting(steps)
    expect([float(path.get("data-step")) for path in parts] == ([] if step is None else [step]), f"they part at {step}")
    for path in parts:
        close(float(path.get("d")[1:].split()[0]), x(step), PIXEL, "the line where they part")


# ---- what ran ----


def option_text(value):
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) if isinstance(value, list) else value


def same_text(text, value):
    wanted = option_text(value)
    return text == wanted if isinstance(wanted, str) else abs(float(text) - wanted) <= 1e-9 * abs(wanted)


def rows_of(root, name):
    found = list(root.all("table", data_table=name))
    expect(len(found) == 1, f"{len(found)} tables {name}")
    return [[cell.text() for cell in row.children] for row in found[0].all("tr")] if found else []


def seconds_of(session):
    if not session["ended"]:
        return 0
    begun, ended = (datetime.datetime.strptime(session[key], "%Y-%m-%dT%H:%M:%SZ") for key in ("begun", "ended"))
    return (ended - begun).total_seconds()


def read_duration(text):
    return sum(int(count) * {"h": 3600, "min": 60, "s": 1}[unit] for count, unit in re.findall(r"(\d+) (h|min|s)\b", text))


def check_run(root, run):
    facts = {e.get("data-fact"): e.text() for e in root.all("dd", data_fact=any)}
    if run is None:
        expect(not facts and "no run.json" in root.text(), f"facts without run.json: {facts}")
        return
    last, model = run["sessions"][-1], run["model"]
    number = lambda key: [int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", facts.get(key, ""))]  # noqa: E731
    expect(facts.get("status", "").startswith(run["status"]), "status")
    expect(number("steps") == [run["step"], run["of"]], "steps")
    expect(number("tokens") == [run["tokens"]], "tokens")
    expect(facts.get("begun") == run["sessions"][0]["begun"].replace("T", " ").replace("Z", " UTC"), "begun")
    expect(read_duration(facts["duration"].split(",")[0]) == sum(map(seconds_of, run["sessions"])), "duration")
    expect(facts["model"].startswith(model["model_type"] + ": "), "the model's type")
    expect(number("model") == [model[key] for key in ("parameters", "layers", "hidden", "experts", "topk")], "the model's sizes")
    expect(facts.get("data") == run["data"] and facts.get("split") == run["split"], "data")
    expect(facts.get("moert") == f"{last['version']}, commit {last['commit']}", "version and commit")
    words = [word.text() for word in root.all("span", **{"class": "word"})]
    expect([subprocess.run(["bash", "-c", "printf %s " + word], capture_output=True).stdout.decode() for word in words] == last["command"], f"command: {words}")
    for rank in last["ranks"]:
        expect(all(rank[key] in facts["ranks"] for key in ("host", "device", "driver")), "a rank's place")
    expect(facts["ranks"].endswith("exchange " + last["exchange"]), "exchange")
    if run["held_out"]:
        numbers = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", facts["held out"])]
        for found, key in zip(numbers, ("last", "last_step", "best", "best_step")):
            close(found, run["held_out"][key], 1e-4 * run["held_out"][key], "held out: " + key)
    if len(run["sessions"]) > 1:
        for row, session in zip(rows_of(root, "sessions")[1:], run["sessions"], strict=True):
            expect(row[0] == str(session["from_step"]) and row[3:5] == [session["version"], session["commit"]] and row[5] == str(len(session["ranks"])), f"session {row}")
    for i, session in enumerate(run["sessions"]):
        rows = rows_of(root, f"options {i} set")[1:]
        expect(all(row[2] != "default" for row in rows), "a default value is among those that were set")
        rows += rows_of(root, f"options {i} default")[1:]
        expect(sorted(row[0] for row in rows) == sorted(session["options"]), "other options")
        for name, text, source in rows:
            option = session["options"].get(name, {})
            expect(same_text(text, option.get("value")) and source == option.get("source"), f"option {name}: {text}, {source}")


# ---- a profile ----


def part_of(cell):
    return float(re.search(r"--part: *([\d.]+)", cell.get("style")).group(1))


def short_number(text):
    return float(text.rstrip("kMGTP")) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1)


def rank_times(lines):
    """The mean milliseconds of each rank's step, and of its classes."""
    ranks = len(lines[0]["step_ms"])
    times = [[0.0] * len(TIMES) for _ in range(ranks)]
    for line in lines:
        for r in range(ranks):
            for name, values in line["operations"].items():
                times[r][CLASS.get(name, 1)] += values[r] / len(lines)
            waited = line.get("waited_ms", [0.0] * ranks)[r] / len(lines)
            times[r][4] += waited
            times[r][3] -= waited
    return [statistics.fmean(line["step_ms"][r] for line in lines) for r in range(ranks)], times


def check_times(root, lines):
    steps, times = rank_times(lines)
    times = [[max(ms, 0.0) for ms in row] for row in times]
    scale = max(max(step, sum(row)) for step, row in zip(steps, times))
    for (rank, *cells), step, row in zip(rows_of(root, "times")[1:], steps, times, strict=True):
        for text, ms in zip(cells, [step, *row], strict=True):
            close(float(text), ms, 0.0051, f"times of rank {rank}")
    bars = {bar.get("data-bar"): bar for bar in root.all("i", data_bar=any)}
    for r, row in enumerate(times):
        for i, ms in enumerate(row):
            close(float(re.search(r"width: *([\d.]+)%", bars[f"{r} {i}"].get("style")).group(1)), 100 * ms / scale, 6e-4, f"bar {r} {i}")
            expect(bars[f"{r} {i}"].has_class(f"t{i}"), "a bar's class")
    for element, name in zip(root.all("b", data_time=any), TIMES, strict=True):
        mean = statistics.fmean(row[TIMES.index(name)] for row in times)
        close(float(element.text().split()[0]), 100 * mean / statistics.fmean(steps), 0.51, "part of " + name)
    return statistics.fmean(steps)


def check_map(root, name, values, part, text):
    found = list(root.all("table", data_map=name))
    expect(len(found) >= 1, f"no table {name}")
    for table in found:
        rows = [[cell for cell in row.children if cell.name == "td"] for row in table.all("tr")][1:]
        for r, (row, numbers) in enumerate(zip(rows, values, strict=True)):
            for cell, value in zip(row, numbers, strict=True):
                close(part_of(cell), min(part(value, r), 1), 6e-4, f"{name}: a shade")
                text(cell, value, r)


def check_exchange(root, ranks, step_ms, hot_times=2.0):
    def short(cell, value, _):
        close(short_number(cell.text()), value, max(0.0051 * abs(value), 0.0051), "a number of a map")

    def expert(cell, value, layer):
        times = value * len(rows[layer]) / sum(rows[layer])
        close(float(cell.text().split()[0]), 100 * value / sum(rows[layer]), 0.51, "an expert's part")
        expect(cell.has_class("hot") == (times >= hot_times), f"an expert with {times} times its share")

    if len(ranks["ranks"]) > 1:
        most = max(v for key in ("dispatched_bytes", "combined_bytes") for row in ranks[key] for v in row)
        check_map(root, "waited_ms", ranks["waited_ms"], lambda v, _: v / step_ms, short)
        for key in ("dispatched_bytes", "combined_bytes"):
            check_map(root, key, ranks[key], lambda v, _: v / most, short)
    rows = ranks["expert_rows"]
    most = max(hot_times, *(v * len(row) / sum(row) for row in rows for v in row))
    check_map(root, "expert_rows", rows, lambda v, layer: v * len(rows[layer]) / sum(rows[layer]) / most, expert)


def check_operations(root, operations):
    keys = [("calls", 1, 1), ("ms_per_step", 3, 1), ("share", 1, 100), ("gflops", 1, 1), ("peak_share", 1, 100), ("gbps", 1, 1), ("copy_share", 1, 100)]
    table = next(root.all("table", data_table="operations"))
    for row, operation in zip(list(table.all("tr"))[1:], operations["rows"], strict=True):
        expect(row.children[0].text() == operation["name"], "an operation's name")
        for cell, (key, digits, factor) in zip(row.children[1:], keys, strict=True):
            if operation[key] is None:
                expect(cell.text() == "–", key)
            else:
                close(float(cell.text()), operation[key] * factor, 0.51 * 10 ** -digits, f"{operation['name']}: {key}")
        close(part_of(row.children[3]), operation["share"], 6e-4, "the shade of an operation")


def check_layers(root, last):
    for layer, row in enumerate(rows_of(root, "layers")[1:]):
        for text, key in zip(row[1:], ("grad_norm", "activation_rms", "router_entropy"), strict=True):
            value = last.get(f"{key}/layer_{layer}")
            expect((text == "–") == (value is None), f"layer {layer}: {key}")
            if value is not None:
                close(float(text), value, 1e-4 * abs(value), f"layer {layer}: {key}")
    expect(f"Experts without a row: {last['dead_experts']:g}." in root.text(), "experts without a row")


def check_trace(root, trace):
    """Every span of the last step is covered by its lane, in its colour if it is not tiny, and gaps that are not tiny stay gaps."""
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    name = max((e for e in events if e["tid"] == 0), key=lambda e: e["ts"])["name"]
    steps = [e for e in events if e["tid"] == 0 and e["name"] == name]
    start, end = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    lanes = list(root.all(data_lane=any))
    expect(len(lanes) == 1 + max(e["pid"] for e in events), f"{len(lanes)} lanes")
    for rank, lane in enumerate(lanes):
        for row in range(1, 5):
            drawn = []
            for span in lane.children:
                if span.has_class(f"row{row}"):
                    left, width = (float(re.search(key + r": *([\d.]+)%", span.get("style")).group(1)) / 100 for key in ("left", "width"))
                    drawn.append((left, left + width, int(span.get("class")[1])))
            own = sorted((max((e["ts"] - start) / (end - start), 0), min((e["ts"] + e["dur"] - start) / (end - start), 1), CLASS.get(e["name"], 1))
                         for e in events if e["tid"] == row and e["pid"] == rank and start < e["ts"] + e["dur"] and e["ts"] < end)
            for a, b, kind in own:
                covers = [d for d in drawn if d[0] <= a + 2e-5 and b <= d[1] + 2e-5]
                expect(covers and (b - a < 5e-4 or any(d[2] == kind for d in covers)), f"a span of rank {rank}, row {row} is missing: {a} to {b}")
            ends = 0.0
            for a, b, _ in own:
                if a - ends > 6e-4:
                    expect(not any(d[0] < (a + ends) / 2 < d[1] for d in drawn), f"rank {rank}: a gap at {ends} is drawn over")
                ends = max(ends, b)


# ---- the checks ----


def figures(run, page, smoothing=None):
    steps = lines_of(run, "metrics.jsonl")
    root = document(page, f"#smoothing={smoothing}" if smoothing else "")
    body = next(root.all("body"))
    expect(body.get("data-drawn") == "yes", "the page is not drawn")
    known = {"noscript", "script", "header", "p", "h1", "h2", "h3", "span", "section", "ul", "li", "label", "input", "output", "div", "figure", "figcaption", "i", "b", "svg",
             "path", "text", "g", "circle", "dl", "dt", "dd", "table", "tbody", "tr", "th", "td", "details", "summary", "small", "footer"}
    others = {e.name for e in body.all()} - known
    expect(not others and len(list(root.all("script"))) == 2, f"elements of the record: {others}")
    window = max(w for w in (1, 3, 5, 11, 21, 51, 101, 201, 501, 1001) if w == 1 or 50 * w <= len(steps))
    check_charts(root, steps, int(smoothing or window))
    check_run(root, object_of(run, "run.json"))
    profile, ranks = lines_of(run, "profile-steps.jsonl"), object_of(run, "profile-ranks.json")
    if profile:
        step_ms = check_times(root, profile)
        if ranks:
            check_exchange(root, ranks, step_ms)
        check_operations(root, object_of(run, "profile.json"))
    else:
        expect("Train with --profile" in root.text() and not list(root.all("table", data_map=any)), "a page without a profile")
    if "mfu" in steps[-1]:
        check_layers(root, steps[-1])
    if os.path.exists(os.path.join(run, "trace.json")):
        check_trace(root, object_of(run, "trace.json"))


def controls(run, page):
    steps = lines_of(run, "metrics.jsonl")
    at = next(i for i in range(len(steps) // 3, len(steps)) if steps[i]["loss"] is not None)
    root = document(with_script(page, f"""
        const slider = document.querySelector('input')
        slider.value = 2
        slider.dispatchEvent(new Event('input'))
        const svg = document.querySelector('svg'), box = svg.getBoundingClientRect(), [left, width, low, high] = svg.dataset.x.split(' ').map(Number)
        svg.dispatchEvent(new PointerEvent('pointermove', {{ clientX: box.left + left + ({steps[at]["step"]} - low) / (high - low) * width }}))"""))
    check_charts(root, steps, 5)
    expect("means of 5 steps" in next(root.all("label")).text(), "the slider's text")
    said = next(next(root.all("figcaption")).all("output")).text()
    expect(said.startswith(f"step {steps[at]['step']}: "), f"the pointer shows {said}")
    close(float(said.split()[2].rstrip(",")), steps[at]["loss"], 1e-4 * steps[at]["loss"], "the loss at the pointer")


LOOKS = """
const channels = (colour) => {
    const numbers = colour.match(/[\\d.]+(e-?\\d+)?/g).map(Number)
    return colour.startsWith('color(') ? numbers.map((n, i) => i < 3 ? 255 * n : n) : numbers
}
const light = (colour) => channels(colour).slice(0, 3).map((c) => c / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((all, c, i) => all + c * [.2126, .7152, .0722][i], 0)
let worst = [99, '']
for (const one of document.body.querySelectorAll('*')) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    if (!own || ['SCRIPT', 'NOSCRIPT'].includes(one.tagName) || getComputedStyle(one).fontSize === '0px') continue
    let behind = one
    while (behind && ((c) => c.length > 3 && c[3] === 0)(channels(getComputedStyle(behind).backgroundColor))) behind = behind.parentElement
    const style = getComputedStyle(one), fore = one instanceof SVGElement ? style.fill : style.color
    const [a, b] = [light(fore), light(getComputedStyle(behind).backgroundColor)].sort((x, y) => y - x)
    if ((a + .05) / (b + .05) < worst[0]) worst = [(a + .05) / (b + .05), one.textContent.slice(0, 40)]
}
const wide = [...document.body.querySelectorAll('section, h1, header p, li, figure, svg, dd, .bars, .wide, summary')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
parent.postMessage([document.documentElement.scrollWidth, innerWidth, wide.map((e) => e.tagName + ' ' + e.className).join(), ...worst, getComputedStyle(document.body).backgroundColor].join('|'), '*')
"""


def looks(page):
    copy = with_script(page, LOOKS)
    backgrounds = set()
    for width in (390, 1280):
        for scheme in (0, 1):
            with tempfile.NamedTemporaryFile("w", suffix=".html", delete=False) as file:
                file.write("<!DOCTYPE html><body><script>onmessage = (event) => document.body.dataset.said = event.data</script>"
                           f"<iframe style='width:{width}px;height:3000px;border:0' src='file://{copy}'></iframe>")
            said = next(document(file.name, "", [f"--blink-settings=preferredColorScheme={scheme}"]).all("body")).get("data-said")
            if said is None:
                wrong.append("the page in a frame says nothing")
                continue
            scroll, inner, wide, contrast, text, background = said.split("|")
            expect(int(inner) == width and int(scroll) <= width and not wide, f"{width} pixels: {scroll} wide, {wide}")
            expect(float(contrast) >= 3, f"{width} pixels, scheme {scheme}: contrast {contrast} of '{text}'")
            backgrounds.add(background)
    expect(len(backgrounds) == 2, f"light and dark: {backgrounds}")


{"figures": figures, "controls": controls, "looks": looks}[sys.argv[1]](*sys.argv[2:])
print("\n".join(wrong[:20]))
sys.exit(len(wrong) > 0)

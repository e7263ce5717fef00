// Curves over the steps of a run. What a chart draws can be read in the document: its svg has the
// place and the range of both axes (data-x and data-y: start, length, lowest, highest), each line
// its column, steps a point (data-piece) and steps a mean (data-window).
onerror = (event) => document.body.append(`The page could not be drawn: ${event}`)
const record = JSON.parse(document.getElementById('record').textContent)
const { steps } = record

// ---- elements and numbers, also for page.js ----

const put = (space) => (parent, name, attributes = {}, text) => {
    const made = space ? document.createElementNS(space, name) : document.createElement(name)
    for (const [key, value] of Object.entries(attributes))
        if (value !== undefined && value !== '') made.setAttribute(key, value)
    if (text !== undefined) made.textContent = text
    parent.append(made)
    return made
}
const element = put(), drawing = put('http://www.w3.org/2000/svg')
const isNumber = (value) => typeof value === 'number'
const digits = (value) => isNumber(value) ? String(Number(value.toPrecision(5))) : '–'
const sum = (values) => values.reduce((a, b) => a + b, 0)
const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0)

// ---- scales ----

// An axis between multiples of a round gap, which is `least` or more.
const axis = (low, high, count, least = 0) => {
    const span = Math.max(high - low, Math.abs(high) * 1e-3, 1e-12)
    const power = 10 ** Math.floor(Math.log10(span / count))
    const times = [1, 2, 5, 10].find((t) => t * power >= span / count * (1 - 1e-9))
    const gap = Math.max(times * power, least)
    const [first, last] = [Math.floor(low / gap + 1e-9), Math.ceil(high / gap - 1e-9)]
    return { gap, low: first * gap, high: Math.max(last, first + 1) * gap }
}
const ticks = (scale) => {
    const first = Math.ceil(scale.low / scale.gap - 1e-9)
    const count = Math.floor(scale.high / scale.gap + 1e-9) - first + 1
    return Array.from({ length: count }, (_, i) => (first + i) * scale.gap)
}
const tickText = (value, gap) => {
    const exact = Number(value.toPrecision(8))
    if (value === 0) return '0'
    if (gap < 1e-3) return exact.toExponential()
    if (gap >= 1e5) return exact / 1e6 + 'M'
    if (gap >= 1e3) return exact / 1e3 + 'k'
    return exact.toFixed(Math.max(0, -Math.floor(Math.log10(gap) + 1e-9)))
}

// ---- smoothing ----

// Means over a window of steps around each step; null where the step has no number.
const smooth = (values, width) => {
    const half = (width - 1) / 2, sums = [0], counts = [0]
    values.forEach((value, i) => {
        sums.push(sums[i] + (isNumber(value) ? value : 0))
        counts.push(counts[i] + (isNumber(value) ? 1 : 0))
    })
    return values.map((value, i) => {
        const from = Math.max(i - half, 0), to = Math.min(i + half + 1, values.length)
        return isNumber(value) ? (sums[to] - sums[from]) / (counts[to] - counts[from]) : null
    })
}
// The address may choose the window: report.html#smoothing=11.
const windows = [1, 3, 5, 11, 21, 51, 101, 201, 501, 1001]
    .filter((width) => width === 1 || 4 * width <= steps.step.length)
const asked = Number((/smoothing=(\d+)/.exec(location.hash) || [])[1])
let smoothing = windows.includes(asked) ? asked
    : windows.filter((width) => width === 1 || 50 * width <= steps.step.length).pop()

// ---- a chart ----

class Chart {
    // lines: {name, text, dots}; options: tall, fromZero, exact (never smoothed)
    constructor(parent, title, lines, options) {
        Object.assign(this, options, { title, lines: lines.filter((line) => steps[line.name]) })
        this.figure = element(parent, 'figure')
        const caption = element(this.figure, 'figcaption', {}, title)
        for (const line of this.lines.length > 1 ? this.lines : []) {
            const key = element(caption, 'span')
            element(key, 'i', { class: 'key ' + line.name })
            key.append(line.text)
        }
        this.readout = element(caption, 'output')
    }
    x(step) {
        const { low, high } = this.across
        return this.left + (step - low) / (high - low) * this.width
    }
    y(value) {
        const { low, high } = this.up
        return this.top + (high - value) / (high - low) * this.height
    }
    at(step, value) { return `${this.x(step).toFixed(2)} ${this.y(value).toFixed(2)}` }
    // Makes the axes for the figure's present width.
    scale() {
        const values = this.lines.flatMap((line) => steps[line.name]).filter(isNumber)
        const low = this.fromZero ? 0 : values.reduce((a, b) => Math.min(a, b), Infinity)
        const first = steps.step[0], last = Math.max(steps.step[steps.step.length - 1], first + 1)
        this.all = Math.max(this.figure.clientWidth, 120)
        this.top = 10
        this.height = this.tall ? 268 : 158
        this.up = axis(low, values.reduce((a, b) => Math.max(a, b), low), this.tall ? 6 : 4)
        this.left = 12 + 7.2 * largest(ticks(this.up).map((v) => tickText(v, this.up.gap).length))
        this.width = this.all - this.left - 12
        const gap = axis(first, last, Math.max(this.width / 90, 2), 1).gap
        this.across = { low: first, high: last, gap }
    }
    draw() {
        if (this.svg) this.svg.remove()
        this.scale()
        this.svg = drawing(this.figure, 'svg', {
            viewBox: `0 0 ${this.all} ${this.height + 32}`, height: this.height + 32,
            role: 'img', 'aria-label': this.title, 'data-chart': this.lines[0].name,
            'data-x': [this.left, this.width, this.across.low, this.across.high].join(' '),
            'data-y': [this.top, this.height, this.up.low, this.up.high].join(' '),
        })
        this.drawAxes()
        for (const line of this.lines) {
            if (line.dots) this.drawDots(line.name)
            else this.drawCurves(line.name, this.exact ? 1 : smoothing)
        }
        if (this.tall) this.drawMarks()
        this.cursor = drawing(this.svg, 'path', { class: 'at' })
        this.svg.onpointermove = (event) =>
            this.point(event.clientX - this.svg.getBoundingClientRect().left)
        this.svg.onpointerleave = () => {
            this.readout.textContent = ''
            this.cursor.removeAttribute('d')
        }
    }
    drawAxes() {
        const bottom = this.top + this.height, right = this.left + this.width
        for (const value of ticks(this.up)) {
            const y = this.y(value).toFixed(2)
            drawing(this.svg, 'path', { class: 'grid', d: `M${this.left} ${y}h${this.width}` })
            drawing(this.svg, 'text', { class: 'up', 'data-value': value, 'text-anchor': 'end',
                x: this.left - 6, y, dy: 4 }, tickText(value, this.up.gap))
        }
        for (const value of ticks(this.across)) {
            const x = this.x(value).toFixed(2)
            drawing(this.svg, 'path', { class: 'grid', d: `M${x} ${bottom}v4` })
            drawing(this.svg, 'text', { class: 'across', 'data-value': value, x, y: bottom + 17,
                'text-anchor': x > right - 20 ? 'end' : 'middle' }, String(value))
        }
    }
    drawCurves(name, width) {
        if (width > 1) this.drawCurve(name, steps[name], 1, 'curve raw')
        this.drawCurve(name, width > 1 ? smooth(steps[name], width) : steps[name], width, 'curve')
    }
    // Draws a point for each pixel, the mean of its steps, and a gap where none has a number.
    drawCurve(name, values, width, style) {
        const piece = Math.ceil(values.length / this.width)
        let d = '', open = false
        for (let i = 0; i < values.length; i += piece) {
            const part = values.slice(i, i + piece).filter(isNumber)
            const own = steps.step.slice(i, i + piece)
            const point = part.length && this.at(sum(own) / own.length, sum(part) / part.length)
            if (point) d += (open ? 'L' : 'M') + point + (open ? '' : 'h.01') // shows single points
            open = Boolean(point)
        }
        drawing(this.svg, 'path', { class: style, 'data-series': name, 'data-piece': piece,
            'data-window': width, d })
    }
    drawDots(name) {
        const group = drawing(this.svg, 'g', { class: name, 'data-series': name })
        const path = drawing(group, 'path', { class: 'dots' }), points = []
        steps[name].forEach((value, i) => {
            if (!isNumber(value)) return
            const [cx, cy] = this.at(steps.step[i], value).split(' ')
            points.push(`${cx} ${cy}`)
            drawing(group, 'circle', { cx, cy, r: 3 })
        })
        path.setAttribute('d', 'M' + points.join('L'))
    }
    // Where held-out and training loss part, and which steps were skipped.
    drawMarks() {
        const bottom = this.top + this.height
        for (const [i, skips] of (steps.skipped || []).entries())
            if (skips) drawing(this.svg, 'path', { class: 'skipped', 'data-step': steps.step[i],
                d: `M${this.x(steps.step[i]).toFixed(2)} ${bottom}v-8` })
        if (record.parts === null) return
        const x = this.x(record.parts), ends = x > this.left + this.width / 2
        drawing(this.svg, 'path', { class: 'parts', 'data-step': record.parts,
            d: `M${x.toFixed(2)} ${this.top}v${this.height}` })
        drawing(this.svg, 'text', { x: ends ? x - 6 : x + 6, y: this.top + 12,
            'text-anchor': ends ? 'end' : 'start' }, `part at step ${record.parts}`)
    }
    // Shows the numbers of the step at x.
    point(x) {
        const { low, high } = this.across, step = low + (x - this.left) / this.width * (high - low)
        const far = (i) => Math.abs(steps.step[i] - step)
        const i = steps.step.reduce((best, _, k) => far(k) < far(best) ? k : best, 0)
        const there = this.lines.filter((line) => isNumber(steps[line.name][i]))
        const text = (line) =>
            `${line.dots ? line.text + ' ' : ''}${digits(steps[line.name][i])}`
        this.cursor.setAttribute('d', `M${this.x(steps.step[i])} ${this.top}v${this.height}`)
        this.readout.textContent = `step ${steps.step[i]}: ${there.map(text).join(', ') || '–'}`
    }
}

const drawCharts = (parent) => {
    const control = element(parent, 'label', { class: 'control' }, 'Smoothing')
    const grid = element(parent, 'div', { class: 'charts' })
    const losses = [{ name: 'loss', text: 'training' },
        { name: 'heldout_loss', text: 'held out', dots: true },
        { name: 'test_loss', text: 'test', dots: true }]
    const charts = [
        ['Loss', losses, { tall: true }],
        ['Learning rate', [{ name: 'lr' }], { fromZero: true, exact: true }],
        ['Gradient norm, before clipping', [{ name: 'grad_norm' }], { fromZero: true }],
        ['Tokens per second', [{ name: 'tokens_per_s' }], { fromZero: true }],
        ['Rows of the busiest expert / mean', [{ name: 'expert_load' }], { fromZero: true }],
        ['Part of the devices\u2019 peak (MFU)', [{ name: 'mfu' }], { fromZero: true }],
    ].filter(([, lines]) => lines.some((line) => steps[line.name]))
        .map((row) => new Chart(grid, ...row))
    const slider = element(control, 'input', { type: 'range', min: 0, max: windows.length - 1 })
    const said = element(control, 'output')
    const draw = () => {
        said.textContent = smoothing > 1 ? `means of ${smoothing} steps` : 'none'
        charts.forEach((chart) => chart.draw())
    }
    slider.value = windows.indexOf(smoothing)
    slider.oninput = () => {
        smoothing = windows[slider.value]
        draw()
    }
    draw()
    let width = grid.clientWidth
    new ResizeObserver(() => {
        if (grid.clientWidth === width) return
        width = grid.clientWidth
        draw()
    }).observe(grid)
}

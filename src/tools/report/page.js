// The sections of a report. A table has its name in data-table or data-map.
const { profile, run, trace } = record
const exchange = profile && profile.exchange
const sessions = (run && run.sessions) || []

const section = (title, about) => {
    const made = element(document.body, 'section')
    if (title) element(made, 'h2', {}, title)
    if (about) element(made, 'p', {}, about)
    return made
}
const folded = (parent, title) => {
    const made = element(parent, 'details')
    element(made, 'summary', {}, title)
    return made
}
const whole = (value) => isNumber(value) ? value.toLocaleString('en') : '–'
const percent = (value, places = 0) => (100 * value).toFixed(places) + ' %'
// About three digits; bytes with a decimal prefix.
const short = (value, bytes) => {
    let at = 0
    for (; bytes && value >= 1000 && at < 5; at++) value /= 1000
    const places = value >= 100 || value === 0 ? 0 : value >= 10 ? 1 : 2
    return value.toFixed(places) + ['', 'k', 'M', 'G', 'T', 'P'][at]
}
const shade = (cell, part) => {
    cell.classList.add('heat')
    cell.classList.toggle('deep', part > 0.6)
    cell.style.setProperty('--part', Math.min(Math.max(part, 0), 1).toFixed(3))
}
// rows: arrays of text, whose first cell is the header. Returns the rows' elements.
const table = (parent, name, style, titles, rows) => {
    const wide = element(parent, 'div', { class: 'wide' })
    const made = element(wide, 'table', { class: style, 'data-table': name })
    const head = element(made, 'tr')
    for (const title of titles) element(head, 'th', { scope: 'col' }, title)
    return rows.map(([first, ...cells]) => {
        const row = element(made, 'tr')
        element(row, 'th', { scope: 'row' }, first)
        for (const text of cells) element(row, 'td', {}, text)
        return row
    })
}

// ---- what ran ----

const utc = (text) => text ? text.replace('T', ' ').replace('Z', ' UTC') : '–'
const seconds = (session) => (Date.parse(session.ended) - Date.parse(session.begun)) / 1000
const duration = (s) => {
    if (!(s >= 0)) return '–'
    const parts = [[s / 3600, 'h'], [s / 60 % 60, 'min'], [s % 60, 's']]
        .map(([count, unit]) => [Math.floor(count), unit])
    return parts.filter(([count], i) => count || i === 2).map((part) => part.join(' ')).join(' ')
}
// The ranks of each kind of device.
const devices = (session) => {
    const found = new Map()
    for (const { host, device, driver } of session.ranks || []) {
        const key = `${device}, ${driver}`
        found.set(key, [...(found.get(key) || []), host])
    }
    const text = ([key, hosts]) => `${hosts.length} of ${key} on ${[...new Set(hosts)].join(', ')}`
    return [...found].map(text).join('; ')
}
const quoted = (word) =>
    /^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`

const showRun = () => {
    const here = section('The run')
    if (!run) {
        element(here, 'p', {}, 'An older version wrote this directory, which has no run.json: '
            + 'options, model and times are not known.')
        return
    }
    const last = sessions[sessions.length - 1] || {}, { model, held_out: held } = run
    const took = duration(sum(sessions.map(seconds).filter((s) => s >= 0)))
    const facts = [
        ['status', run.status === 'running' ? 'running, or killed' : run.status],
        ['steps', `${whole(run.step)} of ${whole(run.of)}`],
        ['tokens', whole(run.tokens)],
        ['begun', utc((sessions[0] || {}).begun)],
        ['duration', took + (sessions.length > 1 ? `, in ${sessions.length} sessions` : '')],
        ['model', model && `${model.model_type}: ${whole(model.parameters)} parameters, `
            + `${whole(model.layers)} layers, hidden ${whole(model.hidden)}, `
            + `${whole(model.experts)} experts, top ${whole(model.topk)}`],
        ['data', run.data],
        ['split', run.split],
        ['held out', held && `${digits(held.last)} after ${held.last_step} steps, `
            + `lowest ${digits(held.best)} after ${held.best_step}`],
        ['moert', `${last.version}, commit ${last.commit}`],
        ['ranks', devices(last) && `${devices(last)}; exchange ${last.exchange}`],
    ]
    const list = element(here, 'dl')
    for (const [name, text] of facts.filter((fact) => fact[1])) {
        element(list, 'dt', {}, name)
        element(list, 'dd', { 'data-fact': name }, text)
    }
    element(list, 'dt', {}, 'command')
    const command = element(list, 'dd', { 'data-fact': 'command' })
    for (const word of last.command || []) {
        element(command, 'span', { class: 'word' }, quoted(word))
        command.append(' ')
    }
    if (sessions.length > 1)
        table(folded(here, 'Sessions'), 'sessions', 'full',
            ['from step', 'begun', 'duration', 'version', 'commit', 'ranks', 'exchange'],
            sessions.map((s) => [whole(s.from_step), utc(s.begun), duration(seconds(s)), s.version,
                s.commit, whole((s.ranks || []).length), s.exchange]))
}

const optionText = (option) => {
    const value = option && option.value
    if (value === null || value === undefined) return '–'
    if (typeof value === 'boolean') return value ? 'yes' : 'no'
    return Array.isArray(value) ? value.join(' ') : String(value)
}
const showOptions = () => {
    const here = section('Options', 'Values that were given, come from the environment, or that '
        + 'moert-train derived from data, model and memory.')
    sessions.forEach(({ options, from_step: from }, i) => {
        const before = i ? sessions[i - 1].options : options
        const title = `Session ${i + 1}, from step ${from}; options that changed are bold`
        const holder = sessions.length > 1 ? folded(here, title) : here
        const show = (parent, kind, names) => {
            const row = (name) => [name, optionText(options[name]), options[name].source]
            const titles = ['option', 'value', 'source']
            table(parent, `options ${i} ${kind}`, 'full text', titles, names.map(row))
                .forEach((line, k) => line.classList.toggle('changed',
                    optionText(before[names[k]]) !== optionText(options[names[k]])))
        }
        const names = Object.keys(options), isDefault = (name) => options[name].source === 'default'
        const rest = names.filter(isDefault)
        holder.open = i === sessions.length - 1
        show(holder, 'set', names.filter((name) => !isDefault(name)))
        show(folded(holder, `${rest.length} options with default values`), 'default', rest)
    })
}

// Of a watched run, as train/monitor.c names its numbers.
const showLayers = (last) => {
    const text = (key) => digits(last[key])
    const rows = []
    for (let l = 0; last[`grad_norm/layer_${l}`] !== undefined; l++)
        rows.push([l, ...['grad_norm', 'activation_rms', 'router_entropy']
            .map((key) => text(`${key}/layer_${l}`))])
    if (!rows.length) return
    const here = section('Layers', 'Of the last step.')
    element(here, 'p', {}, `Experts without a row: ${text('dead_experts')}.`)
    const titles = ['layer', 'gradient norm', 'activation RMS', 'router entropy']
    table(here, 'layers', 'full', titles, rows)
}

// ---- a profiled step ----

const stepMs = profile ? sum(profile.ranks.map((rank) => rank.step_ms)) / profile.ranks.length : 0

const showTimes = () => {
    const here = section('A step, rank by rank',
        'Where the time of a mean step goes. Hatched: waiting for a rank that is not there yet.')
    const { ranks } = profile, { times } = record
    const scale = largest(ranks.map((rank) => Math.max(rank.step_ms, sum(rank.ms))))
    const legend = element(here, 'ul', { class: 'legend' })
    times.forEach((name, i) => {
        const item = element(legend, 'li')
        element(item, 'i', { class: `key t${i}` })
        item.append(name + ' ')
        element(item, 'b', { 'data-time': name },
            percent(sum(ranks.map((rank) => rank.ms[i])) / ranks.length / stepMs))
    })
    const bars = element(here, 'div', { class: ranks.length > 16 ? 'bars many' : 'bars' })
    ranks.forEach((rank, r) => {
        const late = r === record.late
        const who = element(bars, 'span', { class: late ? 'who late' : 'who' }, late ? `▶ ${r}` : r)
        if (!r || rank.node !== ranks[r - 1].node) element(who, 'small', {}, ' ' + rank.host)
        const bar = element(bars, 'div', { class: 'bar', role: 'img',
            'aria-label': `rank ${r}: ${rank.step_ms.toFixed(2)} ms` })
        rank.ms.forEach((ms, i) => {
            const part = percent(ms / rank.step_ms)
            const title = `rank ${r}, ${times[i]}: ${ms.toFixed(2)} ms, ${part}`
            const made = element(bar, 'i', { class: `t${i}`, title, 'data-bar': `${r} ${i}` })
            made.style.width = (100 * ms / scale).toFixed(3) + '%'
        })
        element(bars, 'span', { class: 'ms' }, rank.step_ms.toFixed(1) + ' ms')
    })
    table(folded(here, 'Numbers, in ms'), 'times', '', ['rank', 'step', ...times],
        ranks.map((rank, r) => [r, ...[rank.step_ms, ...rank.ms].map((ms) => ms.toFixed(2))]))
}

const showTrace = () => {
    const here = section('One step in time', 'From the trace. Upper bars: what each rank\u2019s '
        + 'device computes, in the colours of a step\u2019s classes. Thin bars: rows in flight in '
        + 'the staged exchange. Lower bars: when the rank waits for messages.')
    const lanes = element(here, 'div', { class: 'bars' }), of = (ms) => 100 * ms / trace.length
    for (let r = 0; r < trace.ranks; r++) {
        element(lanes, 'span', { class: 'who' }, r)
        const lane = element(lanes, 'div', { class: 'lane', role: 'img', 'data-lane': r,
            'aria-label': `rank ${r} in ${trace.name}: its device above, messages below` })
        for (const [rank, row, kind, start, end] of trace.spans) {
            if (rank !== r) continue
            const span = element(lane, 'i', { class: `t${kind} row${row}` })
            span.style.left = of(start).toFixed(3) + '%'
            span.style.width = of(end - start).toFixed(3) + '%'
        }
    }
    const ends = element(lanes, 'div', { class: 'ends' })
    element(ends, 'span', {}, '0 ms')
    element(ends, 'span', {}, trace.length.toFixed(1) + ' ms')
}

// A table of shaded cells. map: {name, row, column, values}, and functions of a value, its row and
// its column: part, text, tip, and perhaps hot; border(i): a line before row and column i.
const heat = (parent, map, dense) => {
    const wide = element(parent, 'div', { class: 'wide' }), columns = map.values[0].length
    const style = dense ? 'maps dense' : 'maps'
    const made = element(wide, 'table', { class: style, 'data-map': map.name })
    const head = element(made, 'tr'), every = dense ? 8 : 1
    made.style.setProperty('--cell', Math.max(Math.min(800 / columns, 12), 6) + 'px')
    element(head, 'th', {}, `${map.row} ↓ ${map.column} →`)
    for (let c = 0; c < columns; c += every)
        element(head, 'th', { scope: 'col', colspan: dense ? Math.min(every, columns - c) : '' }, c)
    map.values.forEach((values, r) => {
        const row = element(made, 'tr')
        element(row, 'th', { scope: 'row' }, r % every ? '' : r)
        values.forEach((value, c) => {
            const cell = element(row, 'td', { title: map.tip(value, r, c) }, map.text(value, r))
            shade(cell, map.part(value, r))
            cell.classList.toggle('hot', Boolean(map.hot && map.hot(value, r)))
            cell.classList.toggle('left', Boolean(map.border && map.border(c)))
            cell.classList.toggle('top', Boolean(map.border && map.border(r)))
        })
    })
    if (dense) heat(folded(parent, 'Numbers'), map, false)
}

const showExchange = () => {
    const here = section('Who waits for whom, who sends to whom',
        'Per step. The last rank to enter a message is charged with the time that the others '
        + 'waited there; colours are parts of the step. Bytes are those of the routed rows.')
    const holder = element(here, 'div', { class: 'matrices' }), { ranks } = profile
    const most = largest([...exchange.dispatched_bytes, ...exchange.combined_bytes].flat())
    const show = (name, title, row, column, unit, full) => {
        const parent = element(holder, 'div'), text = (value) => short(value, unit === 'bytes')
        element(parent, 'h3', {}, `${title}, ${unit}`)
        heat(parent, { name, row, column, values: exchange[name], text,
            part: (value) => full > 0 ? value / full : 0,
            tip: (value, r, c) => `${row} ${r}, ${column} ${c}: ${text(value)} ${unit}`,
            border: (i) => i > 0 && ranks[i].node !== ranks[i - 1].node }, ranks.length > 12)
    }
    show('waited_ms', 'Waiting', 'rank', 'for rank', 'ms', stepMs)
    show('dispatched_bytes', 'Dispatch: rows to their experts', 'from', 'to rank', 'bytes', most)
    show('combined_bytes', 'Combine: results back', 'from', 'to rank', 'bytes', most)
}

const showExperts = () => {
    const here = section('Load of the experts')
    const about = element(here, 'p', {}, 'The part of a layer\u2019s rows that each expert takes; ')
    const rows = exchange.expert_rows, all = rows.map(sum), experts = rows[0].length
    const times = (value, layer) => all[layer] ? value * experts / all[layer] : 1
    const most = largest(rows.flatMap((row, layer) => row.map((value) => times(value, layer))))
    element(about, 'span', { class: 'frame' })
    about.append(` has ${record.hot_times} times its share or more.`)
    heat(here, { name: 'expert_rows', row: 'layer', column: 'expert', values: rows,
        part: (value, layer) => times(value, layer) / Math.max(record.hot_times, most),
        text: (value, layer) => percent(times(value, layer) / experts, experts > 16 ? 1 : 0),
        hot: (value, layer) => times(value, layer) >= record.hot_times,
        tip: (value, layer, expert) => `layer ${layer}, expert ${expert}: ${value.toFixed(0)} rows `
            + `a step, ${times(value, layer).toFixed(2)} times its share` }, experts > 16)
}

const showOperations = () => {
    const columns = [ // key in profile.json, title, places, factor
        ['calls', 'calls', 1, 1], ['ms_per_step', 'ms', 3, 1], ['share', 'of step %', 1, 100],
        ['gflops', 'GFLOP/s', 1, 1], ['peak_share', 'of peak %', 1, 100],
        ['gbps', 'GB/s', 1, 1], ['copy_share', 'of copy %', 1, 100]]
    const here = section('Operations', 'Per step, means over the ranks; colours are parts of the '
        + 'step. Each rate is followed by its percentage of the best rate measured on the device.')
    const { rows } = profile.operations, titles = columns.map((column) => column[1])
    const text = (row) => ([key, , places, factor]) =>
        isNumber(row[key]) ? (row[key] * factor).toFixed(places) : '–'
    table(here, 'operations', 'full', ['operation', ...titles],
        rows.map((row) => [row.name, ...columns.map(text(row))]))
        .forEach((line, i) => shade(line.children[3], Number(rows[i].share) || 0))
}

// ---- the page ----

document.title = `${record.name}: ${record.headline}`
const header = element(document.body, 'header')
const name = element(header, 'p', {}, `moert-train, run ${record.name}`)
if (run && run.status)
    element(name, 'span', { class: 'pill ' + String(run.status).replace(/\W/g, '') }, run.status)
element(header, 'h1', {}, record.headline)
for (const kind of ['verdict', 'comparison']) {
    if (!record[kind].length) continue
    const list = element(section(), 'ul', { class: 'verdict', 'data-sentences': kind })
    for (const { text, warns } of record[kind])
        element(list, 'li', { class: warns ? 'warns' : '' }, text)
}
drawCharts(section())
showRun()
if (record.last) showLayers(record.last)
if (profile) showTimes()
if (trace) showTrace()
if (exchange && profile.ranks.length > 1) showExchange()
if (exchange) showExperts()
if (profile && profile.operations) showOperations()
if (sessions.length) showOptions()
element(document.body, 'footer', {}, profile
    ? `Times are means of ${profile.steps} profiled steps.`
    : 'Train with --profile to see times, waits, bytes and experts here.')
document.body.dataset.drawn = 'yes'

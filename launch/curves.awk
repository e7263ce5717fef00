# Draws curves as SVG from input lines "SERIES X Y". The lines of a series follow each other with ascending X. Usage:
#   awk -v title=TEXT -v across=TEXT -v up=TEXT [-v zero=1] [-v double=1] [-v mark=X] -f launch/curves.awk ROWS >FILE.svg
# With zero=1 the vertical axis begins at 0. With double=1 the values at the horizontal axis double from tick to tick.
# With mark=X there is a dashed vertical line at X.
{ if (!($1 in count)) name[++series] = $1; n = ++count[$1]; xs[$1, n] = $2; ys[$1, n] = $3; at[$2] }
NR == 1 { low = zero ? 0 : $3; high = $3; first = last = $2 }
{ if ($3 < low) low = $3; if ($3 > high) high = $3; if ($2 < first) first = $2; if ($2 > last) last = $2 }
function x_of(x) { if (last == first) return 60 + 250; return 60 + 500 * (double ? log(x / first) / log(last / first) : (x - first) / (last - first)) }
function y_of(y) { return 40 + 300 * (high - y) / (high - low) }
function text(x, y, anchor, words) {
    gsub(/&/, "\\&amp;", words)
    gsub(/</, "\\&lt;", words)
    printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, words
}
function round_gap(span, power) { # returns a round number, about a fifth of the span
    power = 10 ^ (int(log(span / 5) / log(10) + 100) - 100)
    return power * (span / 5 <= power * 1.001 ? 1 : span / 5 <= 2 * power ? 2 : span / 5 <= 5 * power ? 5 : 10)
}
END {
    if (NR == 0) exit
    gap = round_gap(high > low ? high - low : high != 0 ? (high > 0 ? high : -high) : 1)
    low = gap * (int(low / gap + 1e-6 + 1e6) - 1e6)
    high = gap * (1e6 - int(1e6 - high / gap + 1e-6))
    if (high <= low) high = low + gap
    split("#0072b2 #d55e00 #009e73 #e69f00 #56b4e9 #cc79a7", colours, " ")
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"400\" viewBox=\"0 0 720 400\" font-family=\"sans-serif\" font-size=\"13\">"
    print "<rect width=\"720\" height=\"400\" fill=\"white\"/>"
    text(310, 22, "middle", title)
    text(310, 390, "middle", across)
    printf "<g transform=\"translate(14 190) rotate(-90)\">"
    text(0, 0, "middle", up)
    print "</g>"
    for (value = low; value <= high + gap / 2; value += gap) {
        printf "<path d=\"M60 %.1fH560\" stroke=\"#dddddd\"/>\n", y_of(value)
        text(54, y_of(value) + 4, "end", sprintf("%.6g", value + 0))
    }
    for (x in at) { # sorts the ticks; those without room are left out below
        for (i = ++ticks; i > 1 && tick[i - 1] > x + 0; i--) tick[i] = tick[i - 1]
        tick[i] = x + 0
    }
    for (i = 1; i <= ticks; i++)
        if (i == 1 || x_of(tick[i]) >= shown + 36) {
            shown = x_of(tick[i])
            text(shown, 358, "middle", tick[i])
        }
    if (mark != "" && mark >= first && mark <= last)
        printf "<path d=\"M%.1f 40V340\" stroke=\"#888888\" stroke-dasharray=\"5 4\"/>\n", x_of(mark)
    for (s = 1; s <= series; s++) {
        colour = colours[(s - 1) % 6 + 1]
        printf "<path fill=\"none\" stroke-width=\"2\" stroke=\"%s\" d=\"", colour
        for (i = 1; i <= count[name[s]]; i++) printf "%s%.1f %.1f", (i > 1 ? "L" : "M"), x_of(xs[name[s], i]), y_of(ys[name[s], i])
        print "\"/>"
        for (i = 1; i <= count[name[s]]; i++)
            printf "<circle r=\"3\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"><title>%s: %s</title></circle>\n", colour,
                x_of(xs[name[s], i]), y_of(ys[name[s], i]), xs[name[s], i], ys[name[s], i]
        printf "<path d=\"M572 %.1fh18\" stroke-width=\"2\" stroke=\"%s\"/>\n", 40 + 20 * s, colour
        text(596, 44 + 20 * s, "start", name[s])
    }
    print "</svg>"
}

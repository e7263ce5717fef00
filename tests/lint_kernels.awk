# Finds in kernel files
#   - loops that add or multiply into a scalar float declared outside of them, without IN_ORDER_FOR or UNROLL_FOR: a driver may
#     change the order of such sums, and with it the bits (kernels/lib/common.h)
#   - calls of a driver's own transcendental functions in place of those of kernels/lib/elementary.h
# It relies on the indentation that clang-format makes: a line is in a loop if it is indented more than the loop's header, and so
# are all lines between. Usage: awk -f tests/lint_kernels.awk FILE...

function complain(text) {
    print FILENAME ":" FNR ": " text
    bad = 1
}

# forgets the loops and scalars of scopes that end before a line of this indentation
function leave(depth) {
    while (loops > 0 && loop_depth[loops] >= depth) loops--
    while (scalars > 0 && scalar_depth[scalars] > depth) scalars--
}

# declares the names after a type: "float a = 0.0f, b;", also parameters
function declare(text, depth,    part, n, i, list) {
    while (match(text, /(^|[^a-z_])(float|double|real) [a-z_][a-z_0-9]*/)) {
        part = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        sub(/.* /, "", part)
        if (text !~ /^[[(]/) note(part, depth)
        if (text !~ /^ ?=|^,|^\[/ || line !~ /;$/) continue
        n = split(text, list, ",") # names that follow in the same declaration
        for (i = 2; i <= n; i++)
            if (match(list[i], /^ [a-z_][a-z_0-9]*( =|;|$)/)) {
                part = list[i]
                gsub(/^ | =.*|;/, "", part)
                note(part, depth)
            }
    }
}

function note(name, depth) {
    scalar[++scalars] = name
    scalar_depth[scalars] = depth
}

function in_comment() {
    if (commented) { commented = line !~ /\*\//; return 1 }
    if (line ~ /^ *\/\*/) { commented = line !~ /\*\//; return 1 }
    return 0
}

FNR == 1 { loops = scalars = commented = 0 }
{
    line = $0
    sub(/ *\\$/, "", line)
    if (line ~ /^ *$/ || in_comment()) next
    sub(/ *\/\*.*/, "", line)
    if (line ~ /^#/) next
    match(line, /^ */)
    depth = RLENGTH
    leave(depth)
    if (depth == 0 && line ~ /^[}]/) scalars = 0

    for (i = found = 0; ++i <= scalars && !found;) {
        name = scalar[i]
        if (line ~ "(^|[^a-z_0-9.>])" name " [-+*]= " || line ~ "(^|[^a-z_0-9.>])" name " = .*[^a-z_0-9]" name " [-+*] " ||
            line ~ "(^|[^a-z_0-9.>])" name " = .*[-+*] " name "[^a-z_0-9\\[(]")
            for (j = loops; j > 0 && loop_depth[j] >= scalar_depth[i]; j--)
                if (!marked[j] && !found++) complain("a sum in '" name "' in a loop without IN_ORDER_FOR")
    }
    if (line ~ /(^|[^a-z_0-9])(native_|half_)?(exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|powr|pown|rootn|sin|cos|tan|sincos|sinh|cosh|tanh|erf|erfc|rsqrt|cbrt|hypot)\(/)
        complain("a function of the driver; use those of lib/elementary.h")
    if (line ~ /(^|[^a-z_0-9])(native_|half_)(divide|recip|sqrt)\(/) complain("an approximation of the driver")

    declare(line, line ~ /^[a-zA-Z]/ ? 1 : depth)
    if (line ~ /(^|[^A-Za-z_])(for|while) \(/ || line ~ /(UNROLL|IN_ORDER)_FOR\(/) {
        loop_depth[++loops] = depth
        marked[loops] = line ~ /IN_ORDER|UNROLL/
    }
}
END { exit bad }

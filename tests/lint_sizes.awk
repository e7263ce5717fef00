# Finds in C files and kernels what is larger than docs/contributing.md allows, and circles of includes:
#   files      of more than 500 lines in src, bench and tests/unit, or of more than 300 in kernels
#   functions  of 60 lines or more, or with more than 6 parameters, in src and bench; in kernels, of more than 60 lines, or with more
#              than 10 parameters
#   includes   that lead from a file back to it
# It reads text and relies on the form that clang-format gives it: a function begins in column 1 and ends with a } there. A table in
# a #define is no function. Usage, in the root of the repository: awk -f tests/lint_sizes.awk FILE...

BEGIN {
    for (i = 1; i < ARGC; i++) given[ARGV[i]] = 1
    split("src/ bench/ tests/unit/ kernels/", where, " ")
    split("500 500 500 300", file_most, " ")
    split("59 59 0 60", function_most, " ") # 0: no limit
    split("6 6 0 10", parameters_most, " ")
}

function complain(line, text) {
    print last_file ":" line ": " text
    bad = 1
}

function end_file() {
    if (limit && last_line > file_most[limit]) complain(last_line, last_line " lines in a file, at most " file_most[limit])
}

# the number of parameters in a declaration, up to the { of its body; sets `name`
function count_parameters(text,    i, depth, c, end, count) {
    sub(/[ ]*\{$/, "", text)
    for (i = length(text); i > 0; i--) { # the last parentheses are the parameters
        c = substr(text, i, 1)
        depth += (c == ")") - (c == "(")
        if (depth == 0) break
    }
    name = substr(text, 1, i - 1)
    sub(/[ ]+$/, "", name)
    sub(/.*[^A-Za-z_0-9]/, "", name)
    text = substr(text, i + 1, length(text) - i - 1)
    if (text ~ /^[ ]*(void)?[ ]*$/) return 0
    count = 1
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        depth += (c == "(") - (c == ")")
        count += c == "," && depth == 0
    }
    return count
}

FNR == 1 {
    if (NR > 1) end_file()
    last_file = FILENAME
    state = ""
    limit = 0
    for (i in where) if (index(FILENAME, where[i]) == 1) limit = i
}
{ last_line = FNR }

/^[ ]*#[ ]*include "/ {
    split($0, quoted, "\"")
    edges[FILENAME] = edges[FILENAME] " " quoted[2]
}
/^#/ || !limit || !function_most[limit] { next }

# a declaration goes from a name in column 1 to a { or ; at the end of a line; tables and types do not count
state == "" && /^[A-Za-z_]/ && /\(/ && !/^[^(]*=/ {
    state = "declaration"
    start = FNR
    declaration = ""
}
state == "declaration" {
    line = $0
    gsub(/\/\*[^*]*\*\//, "", line)
    declaration = declaration " " line
    if (line ~ /\{[ ]*$/) state = "body"
    else if (line ~ /[;}][ ]*$/ || line ~ /^[ ]*$/) state = ""
    if (state == "body") {
        parameters = count_parameters(declaration)
        if (parameters > parameters_most[limit])
            complain(start, name ": " parameters " parameters, at most " parameters_most[limit])
    }
    next
}
state == "body" && /^\}/ {
    state = ""
    if (FNR - start + 1 > function_most[limit])
        complain(start, name ": " FNR - start + 1 " lines in a function, at most " function_most[limit])
}

# the file that an include in another file names; "" if that file is not among the given files
function resolve(user, included,    directory, base, i, path) {
    directory = user
    sub(/[^\/]*$/, "", directory)
    split(directory " src/ kernels/ include/ tests/ ", base, " ")
    base[6] = ""
    for (i = 1; i <= 6; i++) {
        path = base[i] included
        while (sub(/[^\/]+\/\.\.\//, "", path)) continue
        if (path in given) return path
    }
    return ""
}

# follows the includes of a file; `trail` has the files that lead to it
function follow(file, trail,    list, count, i, used) {
    if (seen[file] == "done") return
    if (seen[file] == "open") {
        sub(".* " file " ", file " ", trail)
        print "includes go in a circle: " trail file
        bad = 1
        return
    }
    seen[file] = "open"
    count = split(edges[file], list, " ")
    for (i = 1; i <= count; i++)
        if ((used = resolve(file, list[i])) != "") follow(used, trail file " ")
    seen[file] = "done"
}

END {
    end_file()
    for (i = 1; i < ARGC; i++) follow(ARGV[i], " ")
    exit bad
}

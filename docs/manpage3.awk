# Makes man pages of section 3 from the public headers: awk -v version=VERSION -v to=DIRECTORY -f docs/manpage3.awk include/moert/*.h
#
# include/moert/layer.h gives the page moert_layer.3, and for each function of the header a page that refers to moert_layer.3. A
# header opens with a comment that describes the header. Below this first comment, an item is a comment with the code that follows
# it, up to the next empty line or the next comment in the first column. Code for C++ or for a compiler is left out. Lines that are
# indented in a comment keep their form.

function escape(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    sub(/^[.']/, "\\\\\\&&", text)
    return text
}

# Returns the text of a comment, without stars, in roff: lines as paragraphs, and indented lines as a display.
function paragraphs(text, line, lines, i, out, display, parted) {
    lines = split(text, line, "\n")
    parted = 1
    for (i = 1; i <= lines; i++) {
        if (display && line[i] !~ /^  /) { out = out ".EE\n"; display = 0 }
        if (line[i] == "") { parted = 0; continue }
        if (!parted) out = out ".PP\n"
        parted = 1
        if (!display && line[i] ~ /^  /) { out = out ".EX\n"; display = 1 }
        out = out escape(line[i]) "\n"
    }
    return out (display ? ".EE\n" : "")
}

# Adds the item read so far to the description.
function flush(heading) {
    heading = comment
    if (code != "") {
        description = description (description ~ /\.S[HS] [^\n]*\n$/ ? "" : ".PP\n") ".EX\n" code ".EE\n"
        if (comment != "") description = description ".RS 4\n" paragraphs(comment) ".RE\n"
    } else if (gsub(/^---- | ----$/, "", heading)) description = description ".SS " toupper(substr(heading, 1, 1)) substr(heading, 2) "\n"
    else if (comment != "") description = description ".PP\n" paragraphs(comment)
    code = comment = ""
}

function finish(file, names, i) {
    if (page == "") return
    flush()
    file = to "/" page ".3"
    names = page
    for (i = 1; i <= functions; i++) if (name[i] != page) {
        names = names ", " name[i]
        print ".so man3/" page ".3" >(to "/" name[i] ".3")
        close(to "/" name[i] ".3")
    }
    printf ".nr HY 0\n.TH %s 3 \"\" \"moert %s\"\n.ad l\n.SH NAME\n%s \\- %s\n", toupper(page), version, names, escape(about) >file
    printf ".SH SYNOPSIS\n.nf\n\\fB#include <moert/%s.h>\\fR\n", header >file
    if (synopsis != "") printf ".PP\n%s", synopsis >file
    printf ".PP\ncc ... $(pkg\\-config \\-\\-cflags \\-\\-libs moert)\n.fi\n.SH DESCRIPTION\n%s%s", head, description >file
    printf ".SH SEE ALSO\n%s.BR moert\\-train (1)\n", also >file
    close(file)
}

FNR == 1 {
    finish()
    header = FILENAME
    gsub(/.*\/|\.h$/, "", header)
    page = header == "moert" ? header : "moert_" header
    also = page == "moert" ? "" : ".BR moert (3),\n"
    about = head = description = synopsis = code = comment = ""
    functions = skipped = 0
}

# ---- lines of a header that the page leaves out ----

/^#if/ && (skipped || /__cplusplus|__GNUC__|MOERT_[A-Z]*_H$/) {
    if (!skipped && comment != "" && code == "") comment = ""
    if (!/MOERT_[A-Z]*_H$/) skipped++
    next
}
skipped && /^#endif/ { skipped--; next }
skipped == 1 && /^#else/ { branch = 1; skipped = 0; next }
branch && /^#endif/ { branch = 0; next }
skipped || /clang-format/ || /^#define MOERT_([A-Z]*_H|API)$/ || /^#undef/ || /^#endif/ { next }
/^#include "moert/ {
    gsub(/.*\/|\.h"/, "")
    also = also ".BR moert_" $0 " (3),\n"
    next
}
/^#include/ { next }

# ---- comments, code ----

/^\/\*/ { flush(); inside = 1; sub(/^\/\* ?/, "") }
inside {
    last = sub(/ *\*\/$/, "")
    sub(/^ \* ?/, "")
    if (!(comment == "" && $0 == "")) comment = comment (comment == "" ? "" : "\n") $0
    if (!last) next
    inside = 0
    sub(/\n$/, "", comment)
    if (head == "") {
        about = comment
        sub(/^moert: /, "", about)
        gsub(/\n/, " ", about)
        sub(/[.:]( .*)?$/, "", about)
        about = tolower(substr(about, 1, 1)) substr(about, 2)
        head = paragraphs(comment)
        comment = ""
    }
    next
}
/^$/ { flush(); next }
{
    sub(/ *\\$/, "") # of a macro
    if (/^MOERT_API /) prototype = 1
    if (prototype) {
        sub(/^MOERT_API |^          /, "")
        if (match($0, /moert_[a-z0-9_]+\(/) && !/^ /) name[++functions] = substr($0, RSTART, RLENGTH - 1)
        signature = $0
        sub(/;.*/, ";", signature)
        synopsis = synopsis "\\fB" escape(signature) "\\fR\n"
        code = code "\\fB" escape($0) "\\fR\n"
        if (/;/) prototype = 0
    } else code = code escape($0) "\n"
}
END { finish() }

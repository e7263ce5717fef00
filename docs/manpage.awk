# Makes a man page of a program's --help:  PROGRAM --help | awk -v name=PROGRAM -v version=VERSION -f docs/manpage.awk
#
# A --help begins with "usage: ..."; paragraphs say what the program does. "  --option VALUE  text" describes an option; further
# lines of the text are indented deeper. A paragraph right before options is their heading.

function escape(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    sub(/^[.']/, "\\\\\\&&", text)
    return text
}

# Prints the paragraph read so far; `heads` tells whether options follow it.
function flush(heads) {
    if (heads && !listed++) print ".SH OPTIONS"
    if (paragraph != "") print (heads && length(paragraph) < 60 ? ".SS " : ".PP\n") escape(paragraph)
    paragraph = ""
}

sub(/^usage: /, "") { synopsis = escape($0); next }
!about && sub(/^   */, "") { synopsis = synopsis "\n.br\n" escape($0); next }
NF && !about {
    about = tolower(substr($0, 1, 1)) substr($0, 2)
    sub(/[.;:,(].*/, "", about)
    printf ".TH %s 1 \"\" \"moert %s\"\n.SH NAME\n%s \\- %s\n", toupper(name), version, name, escape(about)
    printf ".SH SYNOPSIS\n.ad l\n%s\n.SH DESCRIPTION\n", synopsis
}
/^  [-a-z]/ {
    flush(1)
    sub(/^  /, "")
    at = match($0, /   *[^ ]/)
    option = escape(at ? substr($0, 1, at - 1) : $0)
    gsub(/\|/, "|\\:", option) # allows a line break after each | of a list of words
    print ".TP\n.B " option
    if (at) print escape(substr($0, at + RLENGTH - 1))
    next
}
/^   / { sub(/^ */, ""); print escape($0); next }
NF { paragraph = paragraph (paragraph == "" ? "" : " ") $0; next }
{ flush(0) }
END {
    flush(0)
    print ".SH SEE ALSO"
    if (name != "moert-train") print ".BR moert\\-train (1),"
    if (name != "moert-launch") print ".BR moert\\-launch (1),"
    print ".BR moert (3)"
}

#!/usr/bin/env bash
# run: all
# launch/install-deps chooses a system's packages by its os-release. The script installs packages only for missing programs and
# libraries, keeps an installed MPI other than Open MPI, and says how to put MPI on PATH. Package managers are stubs, so nothing
# is installed.
. "$(dirname "$0")/../support/e2e.sh"

# ---- dry runs on other systems ----

# system TITLE MANAGERS OS_RELEASE PACKAGE...: prints the verdict on a dry run with the os-release OS_RELEASE. The dry run must
# call exactly the package managers MANAGERS, and the last call must install the packages PACKAGE...
system() {
    printf '%s\n' "$3" >"$tmp/os-release"
    logged launch/install-deps --dry-run --os-release "$tmp/os-release"
    local status=$? package last programs
    last=$(tail -n 1 "$log")
    programs=$(sed -E 's/^install-deps: would run: (sudo (-n )?)?(env [^ ]* )?([a-z-]+) .*/\4/' "$log" | paste -sd ' ')
    [ $status -eq 0 ] && [ "$programs" = "$2" ] || status=1
    for package in "${@:4}"; do
        [[ " $last " = *" $package "* ]] || { echo "no package $package" >>"$log"; status=1; }
    done
    verdict $status "$1: $2"
}

apt=(gcc libc6-dev make pkg-config libopenmpi-dev openmpi-bin ocl-icd-opencl-dev opencl-c-headers pocl-opencl-icd libhwloc-dev libjansson-dev
    libxxhash-dev libcmocka-dev procps iproute2 util-linux hostname hwloc-nox)
dnf=(gcc glibc-devel make pkgconf-pkg-config openmpi-devel 'pkgconfig\(OpenCL\)' opencl-headers pocl hwloc-devel jansson-devel xxhash-devel
    libcmocka-devel procps-ng iproute iproute-tc util-linux hostname hwloc)
zypper=(gcc glibc-devel make pkg-config openmpi-devel ocl-icd-devel opencl-headers pocl hwloc-devel libjansson-devel xxhash-devel
    libcmocka-devel procps iproute2 util-linux hostname hwloc)
system "Debian 12" "apt-get apt-get" $'ID=debian\nVERSION_ID="12"' "${apt[@]}"
system "Debian 13" "apt-get apt-get" $'VERSION_ID="13"\nID=debian' "${apt[@]}"
system "Ubuntu 22.04" "apt-get apt-get" $'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"' "${apt[@]}"
system "Ubuntu 24.04" "apt-get apt-get" $'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"' "${apt[@]}"
system "Linux Mint" "apt-get apt-get" $'ID=linuxmint\nID_LIKE="ubuntu debian"' "${apt[@]}"
system "Fedora" "dnf" $'ID=fedora\nVERSION_ID=43' "${dnf[@]}"
system "RHEL 9" "dnf crb dnf" $'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.6"' "${dnf[@]}"
system "Rocky Linux 9" "dnf crb dnf" $'ID_LIKE="rhel centos fedora"\nID="rocky"' "${dnf[@]}"
system "a relative of RHEL" "dnf crb dnf" $'ID="eurolinux"\nID_LIKE="rhel fedora centos"' "${dnf[@]}"
system "openSUSE Leap" "zypper" $'ID="opensuse-leap"\nID_LIKE="suse opensuse"' "${zypper[@]}"
system "openSUSE Tumbleweed" "zypper" $'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"' "${zypper[@]}"
system "SLES" "zypper" $'ID="sles"\nID_LIKE="suse"' "${zypper[@]}"
system "a relative of SLES" "zypper" $'ID=other\nID_LIKE=\'suse\'' "${zypper[@]}"

for id in debian:chromium ubuntu:chromium-browser; do
    echo "ID=${id%:*}" >"$tmp/os-release"
    logged launch/install-deps --dry-run --night --os-release "$tmp/os-release"
    tail -n 1 "$log" | grep -q " ${id#*:}$"
    verdict $? "${id%:*}: the package of the browser is ${id#*:}"
done
echo ID=arch >"$tmp/os-release"
refused 1 "names no known system; .*Debian packages: ${apt[*]}$" "an unknown system gets the list of Debian's packages" \
    logged launch/install-deps --dry-run --os-release "$tmp/os-release"
refused 1 "cannot read '$tmp/none'" "an os-release that cannot be read is refused" logged launch/install-deps --os-release "$tmp/none"
refused 1 "cannot read ''" "--os-release without a file is refused" logged launch/install-deps --os-release
for option in --if-mising gcc; do
    refused 1 "unknown option '$option'" "the option '$option' is refused" logged launch/install-deps --dry-run $option
done

# ---- runs on a small machine ----

# The machine's programs are in $root/bin. A package manager writes its call to $root/calls and installs the files of
# $tmp/packages.
root=$tmp/root

stub() { # FILE [TEXT]: writes a script, below the directory $tmp
    mkdir -p "$(dirname "$tmp/$1")"
    printf '#!/usr/bin/env bash\n%s\n' "${2:-}" >"$tmp/$1"
    chmod +x "$tmp/$1"
}

library() { # DIRECTORY NAME...: writes files for pkg-config, below the directory $tmp
    local name
    for name in "${@:2}"; do stub "$1/$name.pc"; done
}

machine() { # ID DIRECTORY: makes a bare machine, whose package of Open MPI has its files in DIRECTORY, a path relative to $root
    local program
    rm -rf "$root" "$tmp/packages"
    mkdir -p "$root/bin"
    for program in bash cat cp env grep head mktemp rm sed tail tr; do ln -s "$(command -v $program)" "$root/bin/"; done
    echo "ID=$1" >"$root/os-release"
    sed -E "s#([ :-])/(usr|sbin|etc)/#\1$root/\2/#g; s#:/sbin#:$root/sbin#" launch/install-deps >"$root/install-deps"
    stub root/bin/id 'echo 0'
    for program in apt-get dnf zypper crb; do
        stub root/bin/$program "echo ${program} \"\$*\" >>$root/calls; [[ \" \$* \" != *' install '* ]] || cp -R $tmp/packages/. $root/"
    done
    for program in gcc make ps ip tc unshare hostname lstopo-no-graphics; do stub packages/bin/$program; done
    stub packages/bin/pkg-config 'IFS=:; for d in ${PKG_CONFIG_PATH:-} $PKG_CONFIG_LIBDIR; do [ ! -e "$d/$2.pc" ] || exit 0; done; exit 1'
    library packages/pc OpenCL hwloc jansson libxxhash cmocka
    case $1 in
    opensuse*) stub packages/usr/share/OpenCL/vendors/pocl.icd ;;
    *) stub packages/etc/OpenCL/vendors/pocl.icd ;;
    esac
    stub "packages/$2/bin/mpicc"
    stub "packages/$2/bin/mpirun"
}

# outcome STATUS TITLE COMMAND [PATTERN...]: prints the verdict on COMMAND on the machine. The output of COMMAND and its calls
# of package managers must match the patterns; without patterns there must be no output and no calls
outcome() {
    local status
    rm -f "$root/calls"
    logged env -i PATH="$root/bin" PKG_CONFIG_LIBDIR="$root/pc" bash -c "$3"
    status=$?
    [ ! -e "$root/calls" ] || cat "$root/calls" >>"$log"
    [ $status -eq "$1" ] && if [ $# -gt 3 ]; then has_lines "$log" "${@:4}"; else [ ! -s "$log" ]; fi
    verdict $? "$2"
}

install_deps="bash $root/install-deps --os-release $root/os-release"

machine debian .
library packages/pc ompi-c
outcome 0 "a bare Debian gets all packages" "$install_deps --if-missing" '^install-deps: done$' \
    '^install-deps: not found: program gcc, header stdio.h, program make, .*program hostname$' \
    "^apt-get .* install --no-install-recommends ${apt[*]}$"
outcome 0 "--if-missing is silent when nothing is missing" "$install_deps --if-missing"
for program in clang clang-format clang-tidy cppcheck; do stub root/bin/$program; done
stub packages/bin/chromium
outcome 0 "the browser of the night's tests is installed for them alone" "$install_deps --if-missing --checks && $install_deps --if-missing --night" \
    '^install-deps: not found: program chromium$' ' install --no-install-recommends chromium$'
outcome 0 "and found" "$install_deps --if-missing --checks --night"
rm "$root/bin/lstopo-no-graphics"
outcome 0 "--if-missing does not need lstopo" "$install_deps --if-missing"
outcome 0 "without --if-missing, lstopo is installed alone" "$install_deps" ' install --no-install-recommends hwloc-nox$'

for present in mpicc "mpicc mpirun" "mpicc mpirun pkg-config"; do
    machine debian .
    library packages/pc ompi-c
    library root/pc mpich hwloc
    for program in $present; do cp -L "$tmp/packages/bin/$program" "$root/bin/"; done
    case $present in
    mpicc) expected=' make pkg-config libopenmpi-dev openmpi-bin ocl-icd-opencl-dev .* libhwloc-dev ' ;;
    *mpirun) expected=' make pkg-config ocl-icd-opencl-dev .* libhwloc-dev ' ;; # MPICH is kept, although pkg-config is missing and cannot name it
    *) expected=' make ocl-icd-opencl-dev opencl-c-headers pocl-opencl-icd libjansson-dev ' ;;
    esac
    outcome 0 "with MPICH, hwloc and these programs, only the rest is installed: $present" "$install_deps" \
        '^install-deps: done$' "^apt-get .*$expected"
done
outcome 0 "a dry run on another system ignores what this one has" "$install_deps --dry-run" " ${apt[*]}$"

machine rocky .
cp -R "$tmp/packages/." "$root/"
library root/pc mpich
rm "$root/bin/make"
outcome 0 "what is missing is installed" "$install_deps" '^dnf -q -y install --setopt=install_weak_deps=False make$'
[ "$(wc -l <"$root/calls")" -eq 1 ]
verdict $? "EPEL is enabled only for a package that needs it"

# On Fedora and openSUSE, MPI is installed outside of PATH and of pkg-config's directories.
outside() { # ID DIRECTORY LIBRARIES
    machine "$1" "$2"
    library "packages/$3/pkgconfig" ompi-c
    outcome 1 "$1: the command that puts MPI on PATH is named" "$install_deps" ' openmpi-devel ' \
        "^install-deps: MPI is installed, but outside PATH; first run: export PATH=$root/$2/bin:"
    local command
    command=$(sed -n 's/.*first run: //p' "$log")
    outcome 1 "$1: without it, it is named again" "$install_deps --if-missing" 'outside PATH'
    [ ! -e "$root/calls" ] || verdict 1 "nothing is installed"
    outcome 0 "$1: after it, nothing is missing" "$command; $install_deps --if-missing"
}
outside fedora usr/lib64/openmpi usr/lib64/openmpi/lib
outside opensuse-leap usr/lib64/mpi/gcc/openmpi4 usr/lib64/mpi/gcc/openmpi4/lib64

machine rocky usr/lib64/openmpi
stub root/bin/dnf 'echo "No match for argument: pocl"; exit 1'
outcome 1 "a failure of the package manager shows its output and the packages" "$install_deps" '^No match for argument: pocl$' \
    '^install-deps: dnf failed; have these packages installed: gcc .* pocl '
machine debian .
rm "$tmp/packages/bin/unshare"
library packages/pc ompi-c
outcome 1 "what is still missing after the installation is named" "$install_deps" \
    '^install-deps: the packages are installed, yet not found: program unshare; '
finish

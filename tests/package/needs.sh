# What a program or library asks of the machine. Sourced by the tests of this folder.

# glibc of Debian 12, Ubuntu 22.04 and RHEL 9, and what the name of the wheel promises.
glibc=2.34
system_libraries=" libc.so.6 libm.so.6 libgcc_s.so.1 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1 "
failed=0 elves=0
wrong() { echo "$*" >&2; failed=1; }
needs_little() { # file, [other library that is beside it]
    local library wanted
    elves=$((elves + 1))
    for library in $(readelf --dynamic --wide "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p'); do
        [[ "$system_libraries ${2-} " == *" $library "* ]] || wrong "$1 needs $library"
    done
    for wanted in $(readelf --version-info --wide "$1" | grep -o 'Name: GLIBC_[0-9.]*' | sed 's/.*_//' | sort --unique); do
        at_least "$wanted" $glibc || wrong "$1 needs glibc $wanted, later than $glibc"
    done
    ! readelf --sections --wide "$1" | grep -q '[.]symtab' || wrong "$1 has its symbols in it"
}

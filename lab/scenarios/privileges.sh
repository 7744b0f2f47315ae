# Who holds what on a host that runs VMs: the store, its broker and the kernels' parser are not root and hold next to
# nothing; hypercalls are made by xylemd and the broker alone; a hostile kernel fails its own create alone. Then the
# broker is killed, and its daemon.
. /lab/lib.sh

# restart_store ARGUMENTS: kills the store, whose broker has to end by that, and starts another. Its clients'
# connections end with the one before.
restart_store() {
    kill -9 "$(store_pid)"
    check "no broker outlives its daemon" wait_for '! pidof xylem-broker' 60
    xylem-xenstored "$@" >>/results/xylem-xenstored.log 2>&1 </dev/null &
    check "the store is served again" wait_for 'timeout 10 xenstore-read -s /local/domain/0/name' 60
    check "it has a broker" wait_for '[ "$(pidof xylem-broker | wc -w)" = 1 ]' 60
    killall xenconsoled
    wait_for '! pidof xenconsoled' 30
    xenconsoled --log=all --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid
}
# The store as it is meant to be run.
restart_store --user 65534:65534
printf '%s\n' xylem:x:64001:vera,oscar,adam xylem-operator:x:64002:oscar xylem-admin:x:64003:adam >>/etc/group
for lab_user in sam:1231 vera:1232 oscar:1233 adam:1234; do
    printf '%s:x:%s:1230::/tmp:/bin/sh\n' "${lab_user%%:*}" "${lab_user##*:}" >>/etc/passwd
done
start_xylemd

# parser: the process that waits for the next kernel.
parser() {
    for lab_stat in /proc/[0-9]*/stat; do
        awk -v parent="$xylemd_pid" '$4 == parent && $3 != "Z" { print $1 }' "$lab_stat" 2>/dev/null
    done | head -n 1
}
# holds PID: what its descriptors are, each once.
holds() {
    for lab_fd in /proc/"$1"/fd/*; do readlink "$lab_fd"; done | sed 's/:\[.*\]//' | sort | uniq -c
}
# status_has PID LINE
status_has() { grep -q "^$2\$" "/proc/$1/status"; }
# report NAME PID: the table that docs/host.md speaks of.
report() {
    echo "## $1"
    grep -E '^(Uid|Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp):' "/proc/$2/status" | tr '\t' ' '
    grep -E '^Max (cpu time|file size|address space|open files)' "/proc/$2/limits"
    holds "$2"
}
# comes_and_goes NAME: a VM is made and destroyed, and its death is seen.
comes_and_goes() {
    host_state >/results/state.before
    unikernel_cfg "$1" "vif = ['bridge=xenbr0']"
    check "$1 is made" xy create -q "/tmp/$1.cfg"
    check "$1 runs" console_wait "$1" 'vif 0 connected' 60
    check "$1 goes" xy destroy "$1"
    check "dom0 is as before $1" wait_for 'same_state /results/state.before' 60
}
# is_confined PID NAME [UID]
is_confined() {
    check "$2 is not root" status_has "$1" "Uid:.${3:-65534}.${3:-65534}.${3:-65534}.${3:-65534}"
    check "$2 has no capability" status_has "$1" 'CapEff:.0000000000000000'
    check "$2 can get none" status_has "$1" 'CapBnd:.0000000000000000'
    check "$2 gains nothing by programs" status_has "$1" 'NoNewPrivs:.1'
    check "$2 has a filter of system calls" status_has "$1" 'Seccomp:.2'
}

# as USER COMMAND...: vera is a viewer, oscar an operator, adam an admin, sam a stranger.
as() {
    lab_user=$1
    shift
    su -s /bin/sh -c "$*" "$lab_user"
}
# roles: who may do what, by their groups.
roles() {
    unikernel_cfg mine
    xy create -q /tmp/mine.cfg
    check "the socket is root's and its group's" test "$(stat -c '%a %u %g' /run/xylem/xylemd.sock)" = '660 0 64001'
    check "a stranger cannot connect" refused_with 'for root and the members of the group xylem' as sam xy list
    check "a viewer lists" as vera xy list mine
    check "a viewer reads the objects" as vera 'xy objects vm | grep -q mine'
    check "a viewer pauses nothing" refused_with 'needs the role operator, and yours is viewer' as vera xy pause mine
    check "a viewer makes nothing" refused_with 'needs the role admin' as vera xy create -q /tmp/mine.cfg
    check "an operator pauses" as oscar xy pause mine
    check "and lets it go on" as oscar xy unpause mine
    check "an operator makes nothing" refused_with 'needs the role admin, and yours is operator' \
        as oscar xy save mine /tmp/mine.save
    check "nothing was written" test ! -e /tmp/mine.save
    check "an admin saves" as adam xy save mine /tmp/mine.save
    check "and restores" as adam xy restore /tmp/mine.save
    check "and destroys" as adam xy destroy mine
    for lab_number in $(seq 32); do
        as vera timeout 120 xy objects -f >/dev/null 2>&1 &
    done
    check "a user has so many connections and no more" wait_for \
        "refused_with 'uid 1232 has 32 connections already' as vera xy list" 60
    check "root is served meanwhile" xy list
    killall xy
    check "and the user again after that" wait_for 'as vera xy list >/dev/null' 30
    check "what was refused is in the log" grep -q 'pause by uid 1232 (pid [0-9]*): not permitted to a viewer' \
        /results/xylemd.log
}
roles

cp /guest/disk.img /tmp/disk1.img
unikernel_cfg one "vif = ['bridge=xenbr0']" "disk = ['/tmp/disk1.img,raw,xvda,r']"
check "a VM runs" xy create -q /tmp/one.cfg
check "it has its disk" console_wait one 'vbd 51712' 60

store=$(store_pid)
check "a parser waits for the next kernel" wait_for '[ -n "$(parser)" ] && status_has "$(parser)" "Seccomp:.2"' 60
parser=$(parser)
broker=$(pidof xylem-broker)
{
    report xylemd "$xylemd_pid"
    report "xylemd's parser of kernels" "$parser"
    report xylem-xenstored "$store"
    report "xylem-xenstored's broker of hypercalls" "$broker"
} | tee /results/privileges.txt

is_confined "$store" "the store"
is_confined "$parser" "the parser"
is_confined "$broker" "the broker" 1899999999
# holds_its_devices PID
holds_its_devices() {
    [ "$(holds "$1" | awk '$2 ~ "^/dev/xen|^/proc/xen" { print $2 }' | tr '\n' ' ')" = "/dev/xen/evtchn /dev/xen/gntdev /proc/xen/xsd_kva " ]
}
check "of Xen's devices the store holds event channels, grants and dom0's ring" holds_its_devices "$store"
check "nor has it privcmd's memory" sh -c "! grep -E 'privcmd|hypercall' /proc/$store/maps"
check "the broker holds hypercalls, a socket and a list of domains" \
    [ "$(holds "$broker" | awk '{ print $2 }' | tr '\n' ' ')" = "/dev/null /dev/xen/privcmd /memfd:xylem-domains socket " ]
check "it can open nothing more than its runtime would" grep -q '^Max open files *8 ' "/proc/$broker/limits"
check "the parser holds a socket and nothing else" \
    [ "$(holds "$parser" | awk '{ print $2 }' | tr '\n' ' ')" = "/dev/null socket " ]
check "its memory is bounded" grep -q '^Max address space *[0-9]' "/proc/$parser/limits"
check "its CPU time is bounded" grep -q '^Max cpu time *[0-9]' "/proc/$parser/limits"
check "xylemd holds the hypercalls" sh -c "ls -l /proc/$xylemd_pid/fd | grep -q /dev/xen/privcmd"
# Capabilities 22, 19, 25 and 39: restart, trace, clock, BPF.
for lab_bit in 22 19 25 39; do
    lab_bounds=$(sed -n 's/^CapBnd:.//p' "/proc/$xylemd_pid/status")
    check "xylemd and what it starts go without capability $lab_bit" [ $((0x$lab_bounds >> lab_bit & 1)) = 0 ]
done
check "xylemd holds no event channel and no grant" \
    sh -c "! ls -l /proc/$xylemd_pid/fd | grep -E '/dev/xen/(evtchn|gntdev|gntalloc|xenbus)'"
for fd in /proc/[0-9]*/fd/*; do
    case $(readlink "$fd") in
        /dev/xen/privcmd | /dev/xen/hypercall) echo "$fd" | cut -d / -f 3 ;;
    esac
done | sort -u | while read -r pid; do cat "/proc/$pid/comm"; done | sort >/results/privcmd-holders.txt
check "of ours, xylemd and the broker only" \
    [ "$(grep -cvE '^(xylemd|xylem-broker|xenconsoled)$' /results/privcmd-holders.txt)" = 0 ]

# Other programs of ours take over from a confined store, with what is lent to them: they may open nothing themselves.
for lab_round in 1 2; do
    before=$(store_pid)
    check "live update $lab_round of a confined store" xenstore-control live-update /usr/local/bin/xylem-xenstored
    check "another process serves" wait_for '[ "$(store_pid)" != "$before" ] && ! kill -0 "$before"' 60
    store=$(store_pid)
    is_confined "$store" "store $lab_round"
    check "store $lab_round holds no other devices" holds_its_devices "$store"
    check "the broker is the same" [ "$(pidof xylem-broker)" = "$broker" ]
    check "dom0's kernel and the VM have their rings" xy block-attach one /tmp/disk1.img,raw,xvdb,r
    check "and again" xy block-detach one xvdb
    comes_and_goes "after-update$lab_round"
done

# Hostile and damaged kernels: each fails its own create, in words that name the file.
host_state >/results/state.before
# refused NAME WORDS: a create of /tmp/NAME fails, and says so.
refused() {
    unikernel_cfg "bad-$1" "kernel = '/tmp/$1'"
    check "$1 is refused" sh -c "! xy create -q /tmp/bad-$1.cfg 2>/tmp/bad-$1.err"
    sed "s/^/    /" "/tmp/bad-$1.err"
    check "$1 is named" grep -q "/tmp/$1: .*$2" "/tmp/bad-$1.err"
}
head -c 3000000 /guest/vmlinuz >/tmp/cut-off
refused cut-off 'cut off'
head -c 100000 /dev/urandom >/tmp/noise
refused noise 'not an ELF or bzImage'
: >/tmp/empty
refused empty 'empty file'
# A gzip file that says it unpacks to 400 MiB and whose data is not deflate's.
{ printf '\037\213\010\000\000\000\000\000\000\000'; head -c 5000 /dev/urandom; printf '\000\000\000\031'; } >/tmp/bomb
refused bomb .
# The parser that waits is killed: the next kernel gets a new one.
unikernel_cfg after "vif = ['bridge=xenbr0']"
kill -9 "$(parser)"
check "no parser is left" wait_for '[ -z "$(parser)" ]' 60
check "without a parser at hand a kernel is parsed all the same" sh -c "cp /guest/unikernel /tmp/copy && sed -i s,/guest/unikernel,/tmp/copy, /tmp/after.cfg && xy create -q /tmp/after.cfg"
check "and runs" console_wait after 'vif 0 connected' 60
check "it goes" xy destroy after
check "dom0 is as before" wait_for 'same_state /results/state.before' 60
check "xylemd is the same" kill -0 "$xylemd_pid"
check "the first VM never noticed" xy shutdown -w one

host_state >/results/state.before
# A VM that dies while domains cannot be polled.
unikernel_cfg unseen "vif = ['bridge=xenbr0']"
check "unseen runs" xy create -q /tmp/unseen.cfg
kill -9 "$(pidof xylem-broker)"
check "a confined store says what it cannot do without a broker" \
    wait_for 'grep -q "no other broker can be started" /results/xylem-xenstored.log' 60
check "it serves on" xenstore-read -s /local/domain/0/name
kill_xylemd
check "unseen dies" xl destroy unseen
# xl leaves the folder in which it notes its own domains.
xenstore-rm /libxl
restart_store --user 65534:65534
printf '%s\n' xylem:x:64001:vera,oscar,adam xylem-operator:x:64002:oscar xylem-admin:x:64003:adam >>/etc/group
for lab_user in sam:1231 vera:1232 oscar:1233 adam:1234; do
    printf '%s:x:%s:1230::/tmp:/bin/sh\n' "${lab_user%%:*}" "${lab_user##*:}" >>/etc/passwd
done
start_xylemd
check "its death is known to the next daemon" wait_for 'same_state /results/state.before' 60
comes_and_goes two

# A store that is root has another one at once.
restart_store
for lab_round in 1 2 3; do
    kill -9 "$(pidof xylem-broker)"
    comes_and_goes "three$lab_round"
    check "there is another broker" [ "$(pidof xylem-broker | wc -w)" = 1 ]
done
check "the store logged it each time" [ "$(grep -c 'another broker' /results/xylem-xenstored.log)" = 3 ]
check "the new broker has an account of its own" status_has "$(pidof xylem-broker)" 'Uid:.1899999999.1899999999.1899999999.1899999999'

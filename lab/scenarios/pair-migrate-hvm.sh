# lab-addition: hvm
# An HVM guest moves there and back with its device model's state: a boot sector that goes on counting on its emulated serial
# port. It has no PV drivers, so Xen stops it by itself.
# For instance: lab pair --timeout 1500 migrate-hvm
. /lab/lib.sh
. /lab/lib-pair.sh

# As in save-restore-hvm.sh: "A", "B", ... "Z", "A", one in a line.
boot_code='\260\100\376\300\074\133\162\002\260\101\272\370\003\356\120\260\012\356\130\271\074\000\121\271\377\377\342\376\131\342\367\353\341'

models_on() { on "$1" 'pidof xen-qemu-system-i386 qemu-system-i386' >/dev/null; }
# said HOST: what the guest has said there since it came.
said() { on "$1" 'cat /tmp/one.serial 2>/dev/null'; }
lines_on() { said "$1" | wc -l; }

# follows: each letter that came on stdin follows the one before.
follows() {
    tr -d '\r' | tr -d '\n' | awk '{
        for (at = 1; at <= length($0); at++) {
            code = index("ABCDEFGHIJKLMNOPQRSTUVWXYZ", substr($0, at, 1))
            if (seen && code != last % 26 + 1) { print "after " last " comes " code; wrong = 1 }
            last = code; seen = 1
        }
    } END { exit wrong || !seen }'
}

# counts_on HOST
counts_on() {
    lab_lines=$(lines_on "$1")
    wait_for "[ \$(lines_on $1) -gt $((lab_lines + 3)) ]" 180 && said "$1" | follows
}

state() { on "$1" ". /lab/lib.sh && host_state | grep -v -E '^/xylem(/received)? = '"; }
same_as_before() {
    wait_for "state $1 | cmp -s - /results/state.$1" 10
    state "$1" | diff "/results/state.$1" - && ! models_on "$1"
}

# refused WORDS COMMAND...: it fails, and says so.
refused() {
    lab_words=$1
    shift
    "$@" >/tmp/refused 2>&1 && return 1
    cat /tmp/refused
    grep -q "$lab_words" /tmp/refused
}

hvm_cfg one "vif = ['bridge=xenbr0,type=ioemu']"
mkdir -p /srv
cp /tmp/one.img /srv/one
serve_nbd one
for host in a b; do
    check "xylemd on $host" on "$host" ". /lab/lib.sh && start_xylemd --peer-listen $([ $host = a ] && echo 10.0.0.1 || echo 10.0.0.2)"
    check "devices on $host" on "$host" 'modprobe -a tun && modprobe nbd nbds_max=16'
    check "the SR on $host" on "$host" 'xy sr-create s nbd server=10.0.1.1'
done
check "a knows b" xy peer add b 10.0.0.2 "$(on b 'xy peer key 2>/dev/null')"
check "b knows a" on b "xy peer add a 10.0.0.1 $(xy peer key 2>/dev/null)"
state a >/results/state.a
state b >/results/state.b

check "create with a file" xy create -q /tmp/one.cfg || exit
check "it counts" wait_for '[ $(lines_on a) -gt 3 ]' 240 || exit
check "its disk is locked by its device model" refused 'has this disk locked' xy migrate --ssh one b
check "it counts on" counts_on a
check "destroy" xy destroy one
check "nothing is left on b" same_as_before b

sed -i "s,^disk = .*,disk = ['s:one\,\,hda\,w']," /tmp/one.cfg
check "create" xy create -q /tmp/one.cfg || { cat /var/log/xen/qemu-dm-one.log; exit 1; }
check "it counts" wait_for '[ $(lines_on a) -gt 3 ]' 240 || exit
host=a
for how in --ssh --tls '--ssh --non-live' '--tls --non-live'; do
    to=$(other $host)
    begun=$(now)
    check "from $host $how" on $host "xy migrate $how one $to" || { on_both 'tail -5 /var/log/xen/qemu-dm-one.log'; exit 1; }
    echo "moved after $(seconds_since "$begun") s"
    check "it counts on, on $to" counts_on $to
    { said $host && said $to; } >/results/said
    check "where it was" follows </results/said
    on $host 'rm -f /tmp/one.serial'
    check "nothing is left on $host" same_as_before $host
    host=$to
done
check "destroy" on $host 'xy destroy one'
for host in a b; do check "host $host is as before" same_as_before $host; done

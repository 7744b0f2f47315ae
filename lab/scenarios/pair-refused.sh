# What another host cannot take is refused before the guest stops, with one line that names the thing, and nothing is left of
# it on either host: `lab pair refused`.
. /lab/lib.sh
. /lab/lib-pair.sh

# state HOST: what a guest may leave behind there. A VM keeps its port for suspends as long as it runs, and the store the empty
# folder of transfers until the end of the next VM.
state() { on "$1" '. /lab/lib.sh && host_state' | grep -v -e /suspend-port -e '^/xylem/received = ""'; }

# as_before HOST
as_before() {
    wait_for "state $1 | cmp -s - /tmp/before.$1" 10
    state "$1" | diff "/tmp/before.$1" -
}

# refused NAME PATTERN: to b, while it runs here and goes on without a suspend.
refused() {
    check "create $1" xy create -q "/tmp/$1.cfg" || return
    check "$1 is up" console_wait "$1" 'XYLEM-UNIKERNEL: ' 60
    for host in a b; do state $host >/tmp/before.$host; done
    check "$1 is refused" refused_with "$2" xy migrate "$1" b
    check "it runs" sh -c "xy list $1 | awk 'NR == 2 { exit \$5 !~ /^(r|-b)/ }'"
    for host in a b; do check "nothing is left on $host" as_before $host; done
    check "destroy $1" xy destroy "$1"
}

for host in a b; do check "xylemd on $host" on "$host" '. /lab/lib.sh && start_xylemd'; done
truncate -s 4M /root/one.img

unikernel_cfg twice
on_b 'cat >/tmp/twice.cfg' </tmp/twice.cfg
check "create another of that name on b" on_b 'xy create -q /tmp/twice.cfg'
refused twice 'b: refuses: .*twice'
check "destroy it" on_b 'xy destroy twice'

brctl addbr xenbr1
unikernel_cfg bridged "vif = ['bridge=xenbr1']"
refused bridged 'b: refuses: .*xenbr1'

unikernel_cfg disk "disk = ['/root/one.img,raw,xvda,w']"
refused disk 'b: refuses: .*/root/one.img'

free=$(on_b 'xy info free_memory')
on_b "printf \"name = 'fill'\nkernel = '/guest/unikernel'\nmemory = $((free - 100))\n\" >/tmp/fill.cfg"
check "b is full" on_b 'xy create -q /tmp/fill.cfg'
unikernel_cfg large
sed -i 's/^memory = .*/memory = 256/' /tmp/large.cfg
refused large 'b: refuses: .*memory'
check "destroy what fills b" on_b 'xy destroy fill'

check "and what b can take, it takes" eval 'unikernel_cfg small && xy create -q /tmp/small.cfg && xy migrate --non-live small b'
check "it runs there" on_b "xy list small | awk 'NR == 2 { exit \$5 !~ /^(r|-b)/ }'"

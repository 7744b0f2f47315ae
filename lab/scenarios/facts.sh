# What xy tells is what is, and what xl tells: vcpu-list, uptime, list -l, plan, limits, counters. A file is checked on
# its host, unknown keys are warnings, and an interface gets the name that its file says.
. /lab/lib.sh

# ids: the domains of a list, from its second line on.
ids() { awk 'NR > 1 { print $2 }' | sort -n; }
# vcpus COMMAND: domain, vCPU and affinities.
vcpus() { $1 vcpu-list | awk 'NR > 1 { print $1, $2, $3, $(NF - 2), $NF }' | sort; }
# up_seconds COMMAND NAME: its uptime.
up_seconds() {
    $1 uptime | awk -v name="$2" '$1 == name {
        split($NF, part, ":"); print part[1] * 3600 + part[2] * 60 + part[3]; found = 1
    } END { exit !found }'
}
# same_uptime NAME: within what the second command takes.
same_uptime() {
    xl_says=$(up_seconds xl "$1") && xy_says=$(up_seconds xy "$1") || return 1
    echo "$1: xl $xl_says s, xy $xy_says s"
    [ $((xy_says - xl_says)) -ge 0 ] && [ $((xy_says - xl_says)) -le 3 ]
}
count_of() { xy counters | awk -v name="$1" '$1 == name { print $2; found = 1 } END { if (!found) print 0 }'; }

cp /guest/disk.img /tmp/ours.img
unikernel_cfg theirs "type = 'pv'" "vcpus = 2"
unikernel_cfg ours "type = 'pv'" "vcpus = 2" "disk = [ '/tmp/ours.img,raw,xvda,w' ]" \
    "vif = [ 'bridge=xenbr0,ip=10.0.0.9,vifname=lan0,script=vif-bridge' ]" "dhcp = 'dhcp'" "colour = 'red'"
start_xylemd
check "xl create" xl create -q /tmp/theirs.cfg || exit 1

# A check makes nothing and finds everything.
host_state >/tmp/state.before
check "a good file" sh -c 'xy check /tmp/ours.cfg >/tmp/checked && grep -q "ours.cfg: ok" /tmp/checked'
cat /tmp/checked
check "its unknown keys are told" [ "$(grep -c 'warning: \(dhcp\|colour\): ' /tmp/checked)" = 2 ]
check "they are faults if one wants" sh -c '! xy check --strict /tmp/ours.cfg'
cat >/tmp/faulty.cfg <<CONFIG
name = "theirs"
kernel = "/guest/no-such-kernel"
memroy = 8
memory = 8000000
vcpus = "two"
disk = [ "/tmp/no-such.img,raw,xvda,w", "/tmp,raw,xvdb,w" ]
vif = [ "bridge=nobr", "script=vif-route" ]
on_crash = "coredump-destroy"
CONFIG
check "a faulty file" sh -c '! xy check /tmp/faulty.cfg /tmp/no-such.cfg >/tmp/faults'
cat /tmp/faults
for line in 1 2 3 5 8; do
    check "line $line is told" grep -q "faulty.cfg:$line: " /tmp/faults
done
check "both disks" [ "$(grep -c 'faulty.cfg:6: disk' /tmp/faults)" = 2 ]
check "both vifs" [ "$(grep -c 'faulty.cfg:7: vif' /tmp/faults)" = 2 ]
check "the file that is none" grep -q no-such.cfg /tmp/faults
check "a dry run tells them too" sh -c '! xy -N create -q /tmp/faulty.cfg 2>/tmp/dry && [ "$(wc -l </tmp/dry)" -ge 9 ]'
check "nothing was made" same_state /tmp/state.before

check "xy create" sh -c 'xy create -q /tmp/ours.cfg 2>/tmp/warnings' || { cat /tmp/warnings; exit 1; }
check "with its warnings" [ "$(grep -c 'ours.cfg:[0-9]*: warning: ' /tmp/warnings)" = 2 ]
check "its vif is up" wait_for '[ -e /sys/class/net/lan0/brif ] || [ -e /sys/class/net/xenbr0/brif/lan0 ]' 20
domid=$(xy domid ours)
check "under its name alone" [ ! -e "/sys/class/net/vif$domid.0" ]
check "its address is told" [ "$(xenstore-read "/local/domain/0/backend/vif/$domid/0/ip")" = 10.0.0.9 ]
check "xl lists its vif" sh -c 'xl network-list ours | grep -q /local/domain/0/backend/vif'
sed 's/ours/second/; s/^disk.*//' /tmp/ours.cfg >/tmp/second.cfg
check "the name is taken" sh -c 'xy check /tmp/second.cfg | grep "vifname=lan0"'
check "no second VM gets it" sh -c '! xy create -q /tmp/second.cfg 2>/tmp/second.err && grep lan0 /tmp/second.err'

# vCPUs: pinned by xl, ours and theirs.
check "pin" sh -c 'xl vcpu-pin ours 0 0 all && xl vcpu-pin ours 1 all 1 && xl vcpu-pin theirs 1 1 0'
check "all domains have vCPUs" [ "$(xy vcpu-list | awk 'NR > 1 { print $2 }' | sort -nu)" = "$(xl list | ids)" ]
vcpus xl >/tmp/vcpus.xl
vcpus xy >/tmp/vcpus.xy
cat /tmp/vcpus.xy
check "they may run where xl says" diff /tmp/vcpus.xl /tmp/vcpus.xy
check "one domain's" [ "$(xy vcpu-list theirs | awk '$3 == 1 { print $(NF - 2), $NF }')" = "1 0" ]

# Uptimes.
sleep 2
xl uptime
for name in Domain-0 theirs ours; do
    check "uptime of $name" same_uptime "$name"
done
short_uptime() { $1 uptime -s theirs | cut -d' ' -f3-; }
check "uptime -s is xl's" wait_for '[ "$(short_uptime xy)" = "$(short_uptime xl)" ]' 20
check "one domain's uptime" sh -c '[ "$(xy uptime ours | wc -l)" = 2 ]'

# list -l.
xl list -l >/tmp/long.xl
xy list -l >/tmp/long.xy
grep -n '"domid"' /tmp/long.xl /tmp/long.xy
check "list -l has all that xl's has" sh -c 'for id in $(grep -B 1 "\"config\": {" /tmp/long.xl | grep -o "\"domid\": [0-9]*" | cut -d" " -f2); do grep -q "\"domid\": $id,\$" /tmp/long.xy || exit 1; done'
check "and all that list has" [ "$(grep -c '"domid": [0-9]*,$' /tmp/long.xy)" = "$(xl list | ids | wc -l)" ]
# (Xen's limit of memory is 1 MiB above the max_memkb that xl was told.)
for key in name uuid max_vcpus target_memkb; do
    for value in $(xl list -l theirs | grep -o "\"$key\": [^,]*" | cut -d: -f2); do
        check "theirs: $key is $value" sh -c "xy list -l theirs | grep -q '\"$key\": $value'"
    done
done
check "dom0's name" sh -c 'xy list -l 0 | grep -q "\"name\": \"Domain-0\""'

# A plan is what is done.
unikernel_cfg planned "type = 'pv'" "vif = [ 'bridge=xenbr0' ]"
xy plan create /tmp/planned.cfg >/tmp/plan
check "create planned" xy create -q /tmp/planned.cfg
xy trace --json planned | sed -n 's/.*"name": "\(.*\)",/\1/p' | sort >/tmp/done
sed 's/^[0-9]* *//; s/  *(after.*//; s/  *\[undo.*//' /tmp/plan | sort >/tmp/planned
check "what was planned was done" diff /tmp/planned /tmp/done

# Limits are those in force; nothing is in progress on an idle host.
check "limits" sh -c 'xy limits --vm 7 >/dev/null && [ "$(xy limits | awk "\$1 == \"vm\" { print \$3 }")" = 7 ]'
check "nothing waits" [ "$(xy limits | awk '$1 == "waiting" || $1 == "under" { print $NF }' | tr '\n' ' ')" = "0 0 " ]

# Counters count.
before=$(count_of hypercalls) lists=$(count_of getdomaininfolist)
for time in 1 2 3 4 5; do xy list >/dev/null; done
after=$(count_of hypercalls)
echo "5 lists: $((after - before)) hypercalls, $(($(count_of getdomaininfolist) - lists)) lists"
check "a list is one hypercall" [ "$(($(count_of getdomaininfolist) - lists))" -le 6 ]
check "and at least that" [ "$(($(count_of getdomaininfolist) - lists))" -ge 5 ]
xy destroy planned
xl destroy theirs

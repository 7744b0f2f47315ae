# What a list of domains promises while others come and go, and that a dead domain's domid is not reused until
# xylemd has let it go.
. /lab/lib.sh
start_xylemd

stable=10
for number in $(seq $stable); do
    unikernel_cfg "stable$number" "type = 'pv'"
    xy create -q -p "/tmp/stable$number.cfg" >/dev/null || fail "create $number"
done

# By hypercall, two connections against each other.
listed=$(/root/xen_churn listings 25000 200) || fail "$listed"
echo "$listed"
check "25000 lists in time" test "$(echo "$listed" | cut -d' ' -f2)" = 25000

# Through the daemon, while others come and go all the time.
/root/xen_churn listings 100000000 20 >/tmp/churn &
churner=$!
lists=0
while kill -0 $churner 2>/dev/null; do
    xy list >/tmp/list || fail "xy list"
    awk 'NR > 1 { print $2 }' /tmp/list >/tmp/ids
    sort -n -u /tmp/ids | cmp -s - /tmp/ids || fail "xy list is unsorted or has a duplicate: $(cat /tmp/list)"
    # A name may be cut off by nothing but its end.
    for number in $(seq $stable); do
        grep -q "^stable$number " /tmp/list || fail "xy list lacks stable$number: $(cat /tmp/list)"
    done
    lists=$((lists + 1))
done
wait $churner || fail "the lists meanwhile: $(cat /tmp/churn)"
echo "$lists lists of xy, and beside them: $(cat /tmp/churn)"
check "xy listed meanwhile" test "$lists" -gt 5

# The pin. xylemd is stopped, so it cannot release the domain.
domid=$(xy domid stable1)
kill -STOP "$xylemd_pid"
check "a domain in use is not given out" test "$(/root/xen_churn take "$domid")" != taken
/root/xen_churn destroy "$domid" >/dev/null || fail "destroy"
check "a dead domain is there" test "$(/root/xen_churn state "$domid")" = dead
# The store has seen its death: its nodes are the store's to tell about.
check "the store knows" wait_for "xy store stats --json | grep -q 'domains_kept\": *1'" 60
for attempt in 1 2 3 4 5; do
    check "its domid is not reused, $attempt" test "$(/root/xen_churn take "$domid")" != taken
    sleep 0.2
done
echo "the number of a dead domain: $(/root/xen_churn take "$domid")"
kill -CONT "$xylemd_pid"
check "xylemd takes the VM down and lets it go" wait_for "[ \"\$(/root/xen_churn state $domid)\" = none ]" 60
check "then anybody can have it" wait_for "[ \"\$(/root/xen_churn take $domid)\" = taken ]" 60
check "nothing of the VM is left" test -z "$(xenstore-ls -f | grep "stable1\$\|/local/domain/$domid\b")"
check "the others are there" test "$(xy list | grep -c '^stable')" = $((stable - 1))

# A domain that xylemd did not make is released at once.
check "nothing is kept" wait_for "xy store stats --json | grep -q 'domains_kept\": *0'" 60

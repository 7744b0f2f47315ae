# Random operations on a real Xen, with kills of both daemons, for as long as is wanted: soak.sh [SECONDS [SEED]]
exec bash /lab/soak.bash "$@"

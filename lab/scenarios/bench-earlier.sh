# Today's programs and those of an earlier commit (in /root/earlier), in turn: bench-earlier.sh ROUNDS
exec bash /lab/bench-earlier.bash "$@"

# perl_client: what a program in another language does with its usual client, over a unix socket: values, lists, hashes, sets,
# sorted sets, a transaction, errors, a subscription. Prints "fine" when every reply is as expected.
use strict;
use warnings;
use Redis;

sub same {
    my ($what, $got, $expected) = @_;
    my ($left, $right) = map { ref $_ ? join("|", map { $_ // "nil" } @$_) : $_ // "nil" } $got, $expected;
    die "$what: expected $right, came $left\n" if $left ne $right;
}

my $redis = Redis->new(sock => $ARGV[0], encoding => undef);
$redis->flushall;
same("SET", $redis->set("k", "v", "EX", 100), "OK");
same("GET", $redis->get("k"), "v");
same("GET missing", $redis->get("missing"), undef);
same("bytes", do { $redis->set("b", "\0\r\n\xff"); $redis->get("b") }, "\0\r\n\xff");
same("RPUSH", $redis->rpush("l", "a", "b", "c"), 3);
same("LRANGE", [$redis->lrange("l", 0, -1)], ["a", "b", "c"]);
$redis->hmset("h", "f", 1, "g", 2);
my %hash = $redis->hgetall("h");
same("HGETALL", [map { "$_=$hash{$_}" } sort keys %hash], ["f=1", "g=2"]);
same("SADD", $redis->sadd("s", "x", "y", "x"), 2);
same("SMEMBERS", [sort $redis->smembers("s")], ["x", "y"]);
$redis->zadd("z", 2, "two", 1, "one");
same("ZRANGE", [$redis->zrange("z", 0, -1, "WITHSCORES")], ["one", 1, "two", 2]);
$redis->multi;
$redis->incr("n");
$redis->incr("n");
same("EXEC", [$redis->exec], [1, 2]);
eval { $redis->lpush("k", "x") };
die "no error for a list command on a string\n" unless $@ =~ /WRONGTYPE/;
my @pending;
$redis->incrby("p", 1, sub { push @pending, $_[0] }) for 1 .. 100;
$redis->wait_all_responses;
same("pipeline", [@pending[0, 99]], [1, 100]);
my $listener = Redis->new(sock => $ARGV[0], encoding => undef);
my @heard;
$listener->subscribe("channel", sub { push @heard, $_[0] });
same("PUBLISH", $redis->publish("channel", "hello"), 1);
$listener->wait_for_messages(5) until @heard;
same("message", \@heard, ["hello"]);
$redis->quit;
print "fine\n";

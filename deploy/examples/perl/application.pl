#!/usr/bin/perl
# Plain Perl: DBI, and an HTTP server that forks a process for each connection of the sidecar (it keeps at most forward.concurrency).
use strict;
use warnings;
use DBI;
use HTTP::Daemon;
use HTTP::Response;
use HTTP::Status ();
use JSON::PP 'decode_json';

my $db;

sub database {
    return $db if $db && $db->ping;
    return $db = DBI->connect($ENV{DATABASE_DBI}, undef, undef, { RaiseError => 1, PrintError => 0, AutoCommit => 1 });
}

sub in_transaction {
    my ($db, $token, @charge) = @_;
    $db->begin_work;
    $db->do('SELECT onceward.complete(?)', undef, $token);
    $db->do('INSERT INTO charges (order_id, cents) VALUES (?, ?)', undef, @charge);
    $db->commit;
}

# The same in one round trip: with AutoCommit the statement is the transaction.
sub at_once {
    my ($db, @values) = @_;
    $db->do('WITH c AS MATERIALIZED (SELECT onceward.complete(?))
        INSERT INTO charges (order_id, cents) SELECT ?, ? FROM c', undef, @values);
}

sub charge {
    my ($request) = @_;
    my $status = 400;    # what an error means from here on: the message is wrong
    eval {
        my $order = decode_json($request->content);
        my @charge = map { $order->{$_} // die "no $_\n" } qw(id cents);
        $status = 503;    # the database cannot be reached
        my $db = database();
        $status = 500;    # rolled back; Onceward reads the row and does what is right
        my $work = $request->uri->path eq '/payments/at-once' ? \&at_once : \&in_transaction;
        $work->($db, scalar $request->header('Onceward-Token'), @charge);
        $status = 204;
    } or do {
        warn $@;
        eval { $db->rollback } if $db && !$db->{AutoCommit};
    };
    return $status;
}

$SIG{CHLD} = 'IGNORE';
my $server = HTTP::Daemon->new(LocalAddr => '127.0.0.1', LocalPort => $ENV{PORT}, ReuseAddr => 1, Listen => 128) or die "cannot listen: $!\n";
while (1) {
    my $connection = $server->accept or next;
    next if fork;
    while (my $request = $connection->get_request) {
        $connection->send_response(HTTP::Response->new(charge($request)));
    }
    exit;
}

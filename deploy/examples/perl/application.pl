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

# The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
sub invoiced {
    my ($db, $token, @charge) = @_;
    $db->begin_work;
    $db->do('SELECT onceward.complete(?)', undef, $token);
    $db->do('INSERT INTO charges (order_id, cents) VALUES (?, ?)', undef, @charge);
    $db->do("SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', ?::text, 'cents', ?::integer))", undef, @charge);
    $db->commit;
}

# The same as the first in one round trip: with AutoCommit the statement is the transaction.
sub at_once {
    my ($db, @values) = @_;
    $db->do('WITH c AS MATERIALIZED (SELECT onceward.complete(?))
        INSERT INTO charges (order_id, cents) SELECT ?, ? FROM c', undef, @values);
}

my %work = ('/payments' => \&in_transaction, '/payments/invoiced' => \&invoiced, '/payments/at-once' => \&at_once);

sub charge {
    my ($request) = @_;
    my $status = 400;    # what an error means from here on: the message is wrong
    eval {
        my $order = decode_json($request->content);
        my @charge = grep { defined && !ref } ref $order eq 'HASH' ? @$order{qw(id cents)} : ();
        @charge == 2 && $charge[1] =~ /\A-?[0-9]+\z/ or die "not an order: id must be a string, cents an integer\n";
        $status = 503;    # the database cannot be reached
        my $db = database();
        $status = 500;    # rolled back; Onceward reads the row and does what is right
        $work{$request->uri->path}->($db, scalar $request->header('Onceward-Token'), @charge);
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

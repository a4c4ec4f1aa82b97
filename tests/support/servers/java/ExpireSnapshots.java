import java.util.Map;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;

/** Expires all snapshots of a table that no branch or tag holds, and deletes their files. */
public final class ExpireSnapshots {
  public static void main(String[] arguments) throws Exception {
    try (RESTCatalog catalog = new RESTCatalog()) {
      catalog.setConf(new org.apache.hadoop.conf.Configuration());
      String fileIo = "org.apache.iceberg.hadoop.HadoopFileIO";
      catalog.initialize("rest", Map.of("uri", arguments[0], "io-impl", fileIo));
      Table table = catalog.loadTable(TableIdentifier.parse(arguments[1]));
      table.expireSnapshots().expireOlderThan(System.currentTimeMillis()).retainLast(1).commit();
    }
  }
}
